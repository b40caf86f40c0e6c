"""The help of the commands whose flags are a table (`run`, `agent`)."""

from collections.abc import Sequence

from shoal.cli.flags import Flag


def print_help(usage: str, about: str, flags: Sequence[Flag], *, notes: Sequence[str] = ()) -> None:
    """Print every flag, by group. Without colour when it does not go to a terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    console.print(Text.assemble(("usage: ", "dim"), (usage, "bold")))
    console.print()
    console.print(Text(about))
    for group in dict.fromkeys(flag.group for flag in flags):
        console.print()
        console.print(Text(group, style="bold yellow"))
        table = Table.grid(padding=(0, 2))
        table.add_column(min_width=34, no_wrap=True)
        table.add_column()
        for flag in flags:
            if flag.group == group:
                table.add_row(
                    Text.assemble("  ", (_spelling(flag), "cyan"), f" {flag.metavar or ''}"), _explained(flag)
                )
        console.print(table)
    for note in notes:
        console.print()
        console.print(Text(note))


def _spelling(flag: Flag) -> str:
    return f"-{flag.short}, {flag.spelling}" if flag.short else flag.spelling


def _explained(flag: Flag) -> str:
    return flag.help if flag.default is None else f"{flag.help} \\[{flag.default}]"
