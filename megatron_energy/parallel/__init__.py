"""Where ranks stand: tensor, context, expert, data and pipeline coordinates, and the groups they form."""
