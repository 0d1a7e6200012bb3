"""`bagwise fit`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bagwise.cli.messages import failures_explained, say, show, show_json
from bagwise.cli.options import AsJson, Classes, Counts, Overwrite, Proportions, Rows, parse_names, unique

if TYPE_CHECKING:
    from bagwise.commands.fit import Fitted
    from bagwise.functional.noise import ProportionNoise


def fit(
    table: Rows,
    bag: Annotated[str, typer.Option(metavar="COLUMN", help="Column of TABLE with the id of each row's bag.")],
    proportions: Proportions,
    out: Annotated[
        Path | None, typer.Option(metavar="MODEL_DIR", help="Folder of the model to write; required unless --dry-run.")
    ] = None,
    counts: Counts = False,
    noise: Annotated[
        str | None,
        typer.Option(
            metavar="KIND:SCALE",
            help="What was done to the counts before they were published: laplace:2 or gaussian:2 (noise of that "
            "scale was added to each), rounding:5 (to multiples of 5).",
        ),
    ] = None,
    classes: Classes = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="Column of TABLE that is no input, such as an id; may be repeated."),
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            help="kl, rot, l1, l2, lp, combinatorial, dsq, llpfc, llp-mm, count-likelihood, easy-llp or avg-kl; with "
            "a second view of the rows: fixmatch, softmatch, ahil, llp-dc; or llp-vat, mixbag. Without a network, for "
            "embeddings and few large bags: probe. For large bags: self-training."
        ),
    ] = "kl",
    network: Annotated[str, typer.Option(help="mlp or linear.")] = "mlp",
    epochs: Annotated[int, typer.Option(min=1, help="Most passes over the bags; held-out bags choose one.")] = 30,
    learning_rate: Annotated[
        float, typer.Option(help="Highest learning rate; a linear network wants a larger one, about 0.03.")
    ] = 0.001,
    batch_size: Annotated[
        int | None,
        typer.Option(min=1, help="Most rows in a batch of whole bags; by default 512, and fewer in a small table."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same model.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    report: Annotated[bool, typer.Option(help="Whether to write report.html into the folder.")] = True,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only check the tables and tell how they are understood.")
    ] = False,
    overwrite: Overwrite = False,
    json: AsJson = False,
) -> None:
    """Learn a classifier of rows from the proportions of bags.

    Writes a folder with the model and a report that says how far to trust it. No label of a row is needed, and none
    may be among the inputs: leave such a column out by --ignore.

    \b
    Example:
      bagwise fit people.parquet --bag precinct --proportions results.csv --counts --out model
      bagwise fit people.csv --bag precinct --proportions results.csv --dry-run
    """
    with failures_explained():
        from bagwise.bags.setting_checks import check_choice
        from bagwise.commands.fit import check_files, fit_files
        from bagwise.commands.training_data import TrainingFiles
        from bagwise.estimator import ProportionClassifier
        from bagwise.estimator.classifier import DEVICES, NETWORKS
        from bagwise.estimator.ways import METHOD_NAMES, way_to_fit

        check_choice("--method", method, METHOD_NAMES)
        check_choice("--network", network, NETWORKS)
        check_choice("--device", device, DEVICES)
        published = _parse_noise(noise)
        way_to_fit(method, {}, published)  # not every method knows of noise
        files = TrainingFiles(
            table,
            bag,
            proportions,
            counts=counts,
            noise=published,
            classes=parse_names(classes),
            ignore=unique(ignore),
        )
        if dry_run:
            understanding = check_files(files)
            show_json(dataclasses.asdict(understanding)) if json else show(str(understanding))
            return
        if out is None:
            raise ValueError("say where the model goes: --out MODEL_DIR, or look first with --dry-run.")
        classifier = ProportionClassifier(
            method,
            network=network,
            epochs=epochs,
            learning_rate=learning_rate,
            batch_size=batch_size,
            counts=counts,
            proportion_noise=published,
            device=device,
            random_state=seed,
            verbose=True,
        )
        fitted = fit_files(
            files,
            classifier,
            out,
            overwrite=overwrite,
            report=report,
            note=lambda text: say(f"warning: {text}"),
        )
        show_json(dataclasses.asdict(fitted)) if json else show(_in_words(fitted))


def _parse_noise(text: str | None) -> ProportionNoise | None:
    from bagwise.functional.noise import ProportionNoise

    if text is None:
        return None
    kind, _, scale = text.partition(":")
    try:
        number = float(scale)
    except ValueError:
        raise ValueError(
            f"--noise must be a kind and a scale, such as laplace:2, gaussian:1.5 or rounding:5, but got {text!r}."
        ) from None
    return ProportionNoise(kind, number)  # pyright: ignore[reportArgumentType]  (it checks the kind itself)


def _in_words(fitted: Fitted) -> str:
    from bagwise.report.model_words import points

    lines = [
        f"fitted on {fitted.rows:,} rows in {fitted.bags:,} bags, {len(fitted.classes)} classes: "
        f"{', '.join(fitted.classes[:10])}{', ...' if len(fitted.classes) > 10 else ''}",
        fitted.training,
    ]
    if fitted.held_out is not None:
        lines.append(
            f"held-out bags: the predicted shares are off by {points(fitted.held_out['l1'] / 2)} points (so many rows "
            "of 100 would have to change class; giving every bag the overall shares: "
            f"{points(fitted.held_out['l1_of_overall_shares'] / 2)})"
        )
    lines.append(fitted.no_accuracy or str(fitted.accuracy))
    lines.append(f"model: {fitted.model}")
    if fitted.report is not None:
        lines.append(f"report: {fitted.report}")
    return "\n".join(lines)
