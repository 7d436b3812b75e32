"""`lockstep completion SHELL`: what makes a shell complete commands and options by Tab.

The shell calls `lockstep completion words -- LINE...` with the words so far, the last one cut where
the cursor is, and offers what that prints. So it knows a new command without being installed again.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Final

from typer import Argument

from ingest.command.failure import USAGE, Failure

BASH: Final = """\
_lockstep() {
    local line=("${COMP_WORDS[@]:1:COMP_CWORD}")
    mapfile -t COMPREPLY < <(lockstep completion words -- "${line[@]}" 2>/dev/null)
    [ ${#COMPREPLY[@]} -eq 0 ] && compopt -o default
}
complete -F _lockstep lockstep"""
ZSH: Final = """\
_lockstep() {
    local -a found
    found=("${(@f)$(lockstep completion words -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    [[ -n "$found" ]] && compadd -- $found || _files
}
autoload -Uz compinit && compinit
compdef _lockstep lockstep"""
FISH: Final = """\
complete -c lockstep -a '(lockstep completion words -- \
(commandline -opc)[2..-1] (commandline -ct) 2>/dev/null)'"""
SCRIPTS: Final = {"bash": BASH, "zsh": ZSH, "fish": FISH}
HOW: Final = {
    "bash": 'eval "$(lockstep completion bash)" in ~/.bashrc',
    "zsh": 'eval "$(lockstep completion zsh)" in ~/.zshrc',
    "fish": "lockstep completion fish | source in ~/.config/fish/config.fish",
}


def completion(
    shell: Annotated[str, Argument(metavar="bash|zsh|fish", help="Whose script is printed.")],
    words: Annotated[list[str] | None, Argument(hidden=True)] = None,
) -> None:
    """Print what a shell reads to complete by Tab: eval "$(lockstep completion bash)"."""
    if shell == "words":
        print("\n".join(offers(words or [""])))
    elif shell in SCRIPTS:
        print(f"# {HOW[shell]}\n{SCRIPTS[shell]}")
    else:
        raise Failure(f"SHELL: must be one of {', '.join(SCRIPTS)}, got {shell!r}", USAGE)


def offers(words: Sequence[str]) -> list[str]:
    """What may stand in place of the last word, after those before it; none: perhaps a file."""
    from ingest.command.main import COMMANDS, command_of

    *before, begun = words
    if not before:
        return fitting(COMMANDS, begun)
    if before[0] not in COMMANDS:
        return []
    command = command_of(before[0])
    for word in before[1:]:
        command = subcommands(command).get(word, command)
    options = [option for parameter in command.params for option in parameter.opts]
    named = [option for option in [*options, "--help"] if option.startswith("--")]
    return fitting(named if begun.startswith("-") else subcommands(command), begun)


def subcommands(command: Any) -> dict[str, Any]:
    found: dict[str, Any] = getattr(command, "commands", {})
    return found


def fitting(names: Any, begun: str) -> list[str]:
    return sorted({name for name in names if name.startswith(begun)})
