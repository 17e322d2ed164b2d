"""Three ways to chain models, side by side: an external gateway, an ensemble, a script (BLS), and mixtures of them.

    python -m benchmarks.orchestration [--rounds 3] [--quick] [--ways bls,ensemble] [--steps 2,5,10] …
    python -m benchmarks.orchestration --plot-only results.json
    python -m benchmarks.orchestration --write-docs [results.json]

Needs the lab (``benchmarks/lab/setup``) for all but ``--servers Bireme``. A run writes `results.json` beside this file and
prints its tables; ``--plot-only`` draws a run's pictures into `docs/orchestration/`; ``--write-docs`` fills the tables of
`docs/orchestration.md`, too, with a run's results or, without a file, after measuring.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from benchmarks.orchestration.cascades import CASCADES, run_cascade
from benchmarks.orchestration.chains import Plan, run_chains
from benchmarks.orchestration.goals import goals
from benchmarks.orchestration.page import write_page
from benchmarks.orchestration.plots import draw
from benchmarks.orchestration.report import reports
from benchmarks.orchestration.results import DEFAULT, SIZES, WAYS, Results, facts_of_now
from benchmarks.tables import console


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ways", default=",".join(WAYS), help="of the chains")
    parser.add_argument("--cascades", default=",".join(CASCADES))
    parser.add_argument("--servers", default="Bireme,Triton")
    parser.add_argument("--steps", default="2,5,10")
    parser.add_argument("--payloads", default=",".join(SIZES), help=f"of {', '.join(SIZES)}")
    parser.add_argument("--clients", default="1,8")
    parser.add_argument("--seconds", type=float, default=0.8, help="of each measurement")
    parser.add_argument("--quick", action="store_true", help="about a minute, and rough")
    parser.add_argument("--output", type=Path, help=f"default: {DEFAULT.name} beside this program")
    parser.add_argument("--plot-only", type=Path, metavar="RESULTS", help="print and draw what a run found")
    parser.add_argument(
        "--write-docs",
        type=Path,
        nargs="?",
        const=Path(),
        metavar="RESULTS",
        help="draw, and fill the page: with what that run found, or with this one's results",
    )
    return parser.parse_args()


def plan_of(args: argparse.Namespace) -> Plan:
    if args.quick:
        args.rounds, args.seconds = 1, 0.15
        args.steps, args.payloads, args.clients = "2,5", "1 KB,512 KB", "1"
    return Plan(
        ways=args.ways.split(",") if args.ways else (),
        servers=args.servers.split(","),
        steps=[int(each) for each in args.steps.split(",")],
        nbytes=[SIZES[each] for each in args.payloads.split(",")],
        clients=[int(each) for each in args.clients.split(",")],
        rounds=args.rounds,
        seconds=args.seconds,
    )


def main() -> None:
    args = arguments()
    if not console.is_terminal:
        console.width = 160
    path = args.plot_only or (args.write_docs if args.write_docs != Path() else None)
    results = Results.load(path) if path else measured(plan_of(args), args.cascades, output_of(args))
    found = [goals(results), *reports(results)]
    for report in found:
        report.show()
    if path or args.write_docs is not None:
        pictures = draw(results)
        console.print(f"drawn: {', '.join(picture.name for picture in pictures)}", highlight=False)
    if args.write_docs is not None:
        write_page(results, found, pictures)


def output_of(args: argparse.Namespace) -> Path:
    """Return where the results go: rough ones not over others, unless asked to."""
    quick = Path(tempfile.gettempdir(), "orchestration-quick.json")
    path = args.output or (quick if args.quick else DEFAULT)
    console.print(f"results: {path}", highlight=False)
    return path


def measured(plan: Plan, cascades: str, path: Path) -> Results:
    """Run everything, and return what was found, which is in ``path`` as well."""
    results = Results(facts_of_now(plan.rounds, plan.seconds))
    if plan.ways:
        run_chains(plan, results, path)
    for name in cascades.split(",") if cascades else ():
        run_cascade(name, plan.clients, plan.rounds, plan.seconds, results, path)
    return results


if __name__ == "__main__":
    main()
