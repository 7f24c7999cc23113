"""`feedmux completion`: prints the completion script of a shell. The script calls this command for candidates."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Final

from feedmux.cli import settings
from feedmux.cli.terminal import Painted, plain, say

Candidate = tuple[str, str]
"""A word and what it means."""

SCRIPTS: Final = {
    "bash": """\
# feedmux completion for bash. In ~/.bashrc: source <(feedmux completion bash)
_feedmux() {
    local IFS=$'\\n'
    COMPREPLY=($(feedmux __complete bash "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _feedmux feedmux
""",
    "zsh": """\
#compdef feedmux
# feedmux completion for zsh. In ~/.zshrc, after compinit: source <(feedmux completion zsh)
_feedmux() {
    local -a candidates
    candidates=("${(@f)$(feedmux __complete zsh "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ -n "${candidates[*]}" ]]; then
        _describe feedmux candidates
    else
        _files
    fi
}
compdef _feedmux feedmux
""",
    "fish": """\
# feedmux completion for fish. In ~/.config/fish/config.fish: feedmux completion fish | source
function __feedmux
    set -l current (commandline -ct)
    set -l candidates (feedmux __complete fish (commandline -opc)[2..] "$current" 2>/dev/null)
    if test (count $candidates) -gt 0
        printf '%s\\n' $candidates
    else
        __fish_complete_path "$current"
    end
end
complete -c feedmux -f -a '(__feedmux)'
""",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "For this shell only:      source <(feedmux completion bash)\n"
        "For every new shell:      the same line in ~/.bashrc; in ~/.zshrc with zsh, after compinit; with fish\n"
        "                          `feedmux completion fish | source` in ~/.config/fish/config.fish"
    )
    parser.add_argument("shell", metavar="SHELL", choices=tuple(SCRIPTS), help="bash, zsh or fish")


def run(args: argparse.Namespace) -> int:
    say(Painted(SCRIPTS[args.shell]), end="")
    return 0


def print_candidates(shell: str, parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """Print candidates, one per line, as the shell's script expects.

    The last word is the one to complete; may be empty.
    """
    for word, meaning in candidates(parser, words):
        match shell:
            case "zsh" if meaning:
                say(word.replace(":", "\\:") + ":" + meaning)
            case "fish" if meaning:
                say(Painted(f"{plain(word)}\t{plain(meaning)}"))
            case _:
                say(word)


def candidates(parser: argparse.ArgumentParser, words: Sequence[str]) -> Iterator[Candidate]:
    """Return the candidates for the last of the words: no candidates if it is free text or a file."""
    *before, current = words
    option: argparse.Action | None = None
    for word in before:
        if option is not None:
            option = None
        elif word.startswith("-"):
            option = _takes_value(parser, word)
        elif commands := _commands(parser):
            if word not in commands:
                return
            parser = commands[word]
    for word, meaning in _possible(parser, option, current):
        if word.startswith(current):
            yield word, meaning.replace("%%", "%")


def _possible(parser: argparse.ArgumentParser, option: argparse.Action | None, current: str) -> Iterator[Candidate]:
    if option is not None:
        if "--context" in option.option_strings:
            yield from ((name, "") for name in settings.names())
        yield from ((str(choice), "") for choice in option.choices or ())
    elif current.startswith("-"):
        for action in parser._actions:
            if action.help != argparse.SUPPRESS:
                yield from ((text, action.help or "") for text in action.option_strings if text.startswith("--"))
    else:
        for action in parser._get_positional_actions():
            if isinstance(action, argparse._SubParsersAction):
                yield from ((each.dest, each.help or "") for each in action._get_subactions())
            elif action.choices:
                yield from ((str(choice), "") for choice in action.choices)
        if parser.prog in ("feedmux context use", "feedmux context show", "feedmux context delete"):
            yield from ((name, "") for name in settings.names())


def _takes_value(parser: argparse.ArgumentParser, word: str) -> argparse.Action | None:
    action = parser._option_string_actions.get(word)
    return action if action is not None and action.nargs != 0 else None


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return action.choices
    return {}
