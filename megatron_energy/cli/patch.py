"""``megatron-energy patch list|verify|apply|revert``: transition points in a fork of Megatron's instead of around its functions."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from megatron_energy.megatron.patching import Target

HELP = {
    "list": ("the patches there are", "One line for every version of megatron-core that there is a patch for"),
    "verify": (
        "whether a patch fits, and whether it is in",
        "Puts the patch in and takes it out again in memory, and changes nothing. Fails where no patch fits",
    ),
    "apply": ("put the patch in", "Nothing happens where it is in already"),
    "revert": ("take the patch out", "The file is then as it was released, to the byte. Nothing happens where the patch is not in"),
}


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "patch",
        help="transition points in a fork of Megatron",
        allow_abbrev=False,
        description="Training needs no patch. For those who prefer a patched fork: puts calls at the transition points into the "
        "schedules of a released megatron-core, and takes them out again.",
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    for action, (help, description) in HELP.items():
        one = actions.add_parser(action, help=help, allow_abbrev=False, description=f"{description}.")
        if action != "list":
            one.add_argument(
                "--site", metavar="FOLDER", type=Path, help="the folder that holds megatron/ (default: where Python finds megatron.core)"
            )
        one.set_defaults(handler=handler, action=action)


def handler(args: argparse.Namespace) -> int:
    """Do it and say in one line what was done. Raises UserError where no patch fits, or a file cannot be written."""
    from megatron_energy.megatron import patching

    if args.action == "list":
        for patch in patching.all_patches():
            print(f"megatron-core {patch.version}: {patch.inserted_lines} lines into {patch.target} (SHA-256 {patch.sha256[:12]}...)")
        return 0
    target = patching.find(args.site if args.site is not None else patching.installed_site())
    print(f"{target.path}: {_act(args.action, target)}")
    return 0


def _act(action: str, target: "Target") -> str:
    """What was done, or found."""
    from megatron_energy.megatron import patching

    released = f"as released with megatron-core {target.patch.version}"
    if action == "verify":
        patching.verify(target)
        return "patched; `megatron-energy patch revert` gives the released file back" if target.patched else f"{released}; the patch fits"
    if action == "apply":
        return f"{target.patch.inserted_lines} lines put in" if patching.apply(target) else "patched already, nothing to do"
    return f"{released} again" if patching.revert(target) else "not patched, nothing to do"
