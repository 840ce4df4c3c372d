"""Building a report: open runs, prepare their rows again, evaluate, compare, and arrange the results in chapters."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import tomli_w
from markupsafe import Markup

from fieldwise.bundle.bundle import MANIFEST, Bundle, bundle_origin
from fieldwise.charts import Line, dot_chart, heat_map, line_chart, wider
from fieldwise.config import flat
from fieldwise.data.encode.columns import as_text
from fieldwise.data.encode.fitted_fields import Vocabulary
from fieldwise.data.encode.numbers import is_mark
from fieldwise.data.prepare.ordering import order_values
from fieldwise.data.prepare.prepared import Prepared, encoded_by, group_codes
from fieldwise.data.prepare.settings import PARTS
from fieldwise.display import Table, number
from fieldwise.errors import ConfigError, DataError, FieldwiseError
from fieldwise.evaluation import auc, binary_metrics, rmse
from fieldwise.evaluation.metrics import compared, shown_name
from fieldwise.evaluation.words import of_100
from fieldwise.explain.effects import effects
from fieldwise.explain.explanation import (
    darkest,
    explain_subject,
    prediction_text,
    summary,
    summary_tables,
    uniform_text,
)
from fieldwise.explain.subject import Subject
from fieldwise.models.build import mean_sentence, model_name
from fieldwise.report.sections import (
    Block,
    Caution,
    Chapter,
    Code,
    Figure,
    Scored,
    Section,
    calibration_section,
    check_slices,
    cold_section,
    count,
    curves_section,
    interval_cell,
    learning_section,
    measured,
    metrics_section,
    numbers_section,
    percent,
    render,
    share_cell,
    slices_section,
    words_section,
)
from fieldwise.runs.data import data_settings, prepare_recipe
from fieldwise.runs.leaderboard import Board, leaderboards, p_text
from fieldwise.runs.pipeline import best_possible
from fieldwise.runs.ranking import RankingSettings, RankingTask, rank_items
from fieldwise.runs.recipe import Recipe
from fieldwise.runs.records import RunRecord, read_record, with_words
from fieldwise.runs.row_digests import scored_rows_digest
from fieldwise.runs.rows_of_run import PART_WORDS, recipe_of, rows_of_run
from fieldwise.schema import Label, Schema, Task
from fieldwise.schema.ids import id_columns
from fieldwise.storage.cache import Cache
from fieldwise.training.objective import Objective, monitored

INSTEAD = "run the report with the data that it was trained on"


class ReportedRun:
    """A bundle, or a run stored by `compare`, which has only scores of its test rows.

    `score` sets, for its rows that were prepared again, `test` (scores by label, with the bundle's
    calibration), `raw` (without), `valid` (the same of the validation rows; empty without a bundle)
    and `checked` (whether the test rows are verified to be those of the run).
    """

    def __init__(self, folder: Path, device: str = "cpu") -> None:
        """Open a bundle or a stored run, without reading its rows."""
        self.folder = folder
        self.bundle = None
        self.stored = None if (folder / MANIFEST).exists() else read_record(folder)
        if self.stored is None:
            self.bundle = Bundle.load(folder, device=device)
            self.recipe = recipe_of(
                self.bundle, folder, "a report needs a bundle of `fieldwise train`"
            )
            about: Mapping[str, Any] = self.bundle.about
            self.record: Mapping[str, Any] = about.get("run", {})
            self.origin = bundle_origin(folder)
        else:
            about = self.record = self.stored.about
            self.origin = {}
            try:
                self.recipe = Recipe.from_dict(
                    {"defaults": "fixed", **about["settings"]}, str(about["recipe"])
                )
            except (LookupError, TypeError) as e:
                raise DataError(
                    f"the run {folder} is damaged: its record has no {e}; remove the folder and run again"
                ) from e
        self.origin["environment"] = about.get("environment", {})
        self.history = about.get("history", ())
        self.name = (
            Path(self.recipe.name).stem if self.recipe.name.endswith(".toml") else self.recipe.name
        )

    def score(self, prepared: Prepared) -> None:
        """Check that rows belong to the run, and score them."""
        recipe = self.recipe
        bundle = self.bundle
        self.prepared = prepared
        self.checked = True
        self.valid: dict[str, Scored] = {}
        if bundle is not None:
            _, self.checked = rows_of_run(bundle, recipe, prepared, "test", INSTEAD)
            self.raw = _scored(bundle, prepared, "test")
            if "refit" not in self.record:
                rows_of_run(bundle, recipe, prepared, "valid", INSTEAD)
                self.valid = _scored(bundle, prepared, "valid")
            maps = bundle.calibration
            self.test = {
                n: Scored(s.y, maps[n].logit(s.score)) if n in maps else s
                for n, s in self.raw.items()
            }
            return
        assert self.stored is not None, "a run is a bundle or a stored run"
        y, score = self.stored.test_rows
        same = self.stored["test_digest"] == scored_rows_digest(self.frame, recipe)
        if not same or not np.array_equal(prepared.test.main, y):
            raise DataError(
                f"the test rows must be those of the run {self.folder}, but the data of {recipe.name} have changed "
                f"since: {INSTEAD}"
            )
        self.test = self.raw = {recipe.schema.label.name: Scored(y, score)}

    @property
    def frame(self) -> pl.DataFrame:
        """The test rows before encoding."""
        return self.prepared.test.frame

    @cached_property
    def group(self) -> np.ndarray | None:
        """Groups of the test rows."""
        return group_codes(self.frame, self.recipe.schema)

    @property
    def labels(self) -> tuple[Label, ...]:
        """The labels with scores, the main one first."""
        return tuple(label for label in self.recipe.schema.labels if label.name in self.test)


def _scored(bundle: Bundle, prepared: Prepared, part: str) -> dict[str, Scored]:
    rows = getattr(prepared, part)
    # The encoders differ after a second training, or where another version of fieldwise trained the
    # bundle.
    table = encoded_by(bundle.encoder, rows, prepared.encoder)
    score = bundle.score_table(table).reshape(len(table), -1)
    y = np.asarray(rows.y, dtype=np.float64)
    return {
        label.name: Scored(y[:, k], label.predicted(score[:, k]))
        for k, label in enumerate(bundle.schema.labels)
    }


def data_section(run: ReportedRun) -> Section:
    """A section on split sizes, times, positive rates and fields."""
    schema = run.recipe.schema
    prepared = run.prepared
    labels = schema.labels
    rows = []
    for name in PARTS:
        part = getattr(prepared, name)
        y = np.asarray(part.y, dtype=np.float64)
        cells = {"rows of": PART_WORDS[name], "rows": count(len(part.y))}
        for label, mean in zip(labels, y.mean(0), strict=True):
            cells[f"{'positive rate' if label.task == 'binary' else 'mean'} of {label.name}"] = (
                number(float(mean))
            )
        if schema.grouping is not None:
            there = schema.grouping in part.frame.columns
            own = count(part.frame.get_column(schema.grouping).n_unique()) if there else ""
            cells[f"distinct {schema.grouping}"] = own
        if schema.time is not None:
            cells[f"first {schema.time}"], cells[f"last {schema.time}"] = _times(part.frame, schema)
        rows.append(cells)
    by_label = prepared.counts.get("dropped_by_label", 0)
    by_split = prepared.counts.get("dropped_by_split", 0)
    drawn = prepared.counts.get("negatives_drawn", 0)
    note = "" if by_label or by_split else "No row was dropped."
    note += f"{count(by_label)} rows were dropped by the label's rule." if by_label else ""
    note += f" {count(by_split)} rows were dropped by the split." if by_split else ""
    note += f" {count(drawn)} negatives were sampled." if drawn else ""
    unknown = prepared.counts.get("negatives_without_value", 0)
    note += (
        f" In {count(unknown)} of them the item has no value before the time of the row."
        if unknown
        else ""
    )
    blocks: list[Block] = [
        Table(list(rows[0]), [list(cells.values()) for cells in rows], note=note)
    ]
    if not run.checked:
        why = "because the bundle has no digest of them"
        blocks.append(
            Caution(f"Not checked: whether these are the test rows of the training run, {why}.")
        )
    encoder = prepared.encoder
    unseen = prepared.unseen.get("test", {})
    fields = []
    for field, fitted in zip(encoder.fields, encoder.fitted, strict=True):
        size = count(len(fitted.values)) if isinstance(fitted, Vocabulary) else ""
        share = percent(unseen[field.name]) if field.name in unseen else ""
        shown = (
            field.name if field.column == field.name else f"{field.name} (column {field.column})"
        )
        fields.append([shown, field.kind, field.role, size, share])
    note = (
        "Values known: values of the training rows with their own embedding. Unseen: the share of the test rows' "
        "values that use the field's embedding for unknown values."
    )
    columns = ["field", "kind", "role", "values known", "unseen on test"]
    return Section(
        "Data", [*blocks, Table(columns, fields, title="Fields", words=(1, 2), note=note)]
    )


def _times(frame: pl.DataFrame, schema: Schema) -> list[str]:
    column = schema.time
    if (
        column is None
        or column not in frame.columns
        or frame.get_column(column).null_count() == frame.height
    ):
        return ["", ""]
    present = frame.drop_nulls(column)
    if present.schema[column] == pl.String:
        present = present.filter(~is_mark(present.get_column(column), schema.missing))
    try:
        times = order_values(present, column, "time", schema.time_format, schema.missing)
    except DataError:  # a random split does not need valid times
        return ["", ""]
    cells = present.get_column(column)
    return [str(cells[int(times.argmin())]), str(cells[int(times.argmax())])]


def recipe_section(run: ReportedRun) -> Section:
    """A section on the recipe, the software versions and the machine."""
    settings = run.recipe.to_dict()
    rows: list[list[str]] = []
    for part in ("model", "training", "split"):
        rows += [
            [name, str(value)]
            for name, value in flat(settings.get(part, {}), f"{part}.").items()
            if value != {}
        ]
    rows += [["seed", str(run.recipe.seed)], ["data_seed", str(run.recipe.rows_seed)]]
    title = "Settings of model, training and split"
    record = run.record
    environment = run.origin.get("environment", {})
    versions = run.origin.get("versions", {}) | {
        k: environment[k] for k in ("fieldwise", "torch") if k in environment
    }
    seconds = record.get("seconds_per_epoch")
    facts = {
        "recipe": run.recipe.name,
        "benchmark": run.recipe.benchmark or "",
        "protocol": run.recipe.protocol or "",
        "run": str(run.folder),
        "model": model_name(run.recipe.model),
        "mean with LR": mean_sentence(record.get("network_share", 1.0)) or "",
        "parameters": count(record["parameters"]) if "parameters" in record else "",
        "seconds in total": f"{record['seconds']:.1f}" if "seconds" in record else "",
        "seconds per epoch (median)": "" if seconds is None else f"{seconds:.1f}",
        "made": str(run.origin.get("created", environment.get("date", ""))),
        **{name: str(environment.get(name, "")) for name in ("machine", "threads", "commit")},
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }
    unknown = "not recorded: trained by an older version"
    known = [[k, v or unknown] for k, v in facts.items() if v or k in ("machine", "commit")]
    blocks: list[Block] = [
        Table(["fact", "value"], known, words=(1,)),
        Table(["setting", "value"], rows, title=title, folded=True, words=(1,)),
        Code("The whole recipe, as TOML", tomli_w.dumps(settings)),
    ]
    return Section("Recipe and machine", blocks)


TITLE = "Compared with the popularity baseline"
K = 10
ITEMS = 5000  # maximum number of items ranked for a user, besides the liked ones
MAX_SCORED_PAIRS = 1_000_000  # approximate number of scored pairs of users and items
USERS = 50, 500
DRAWS = 1000


def popularity_section(run: ReportedRun, columns: Mapping[str, str | None], seed: int) -> Section:
    """Items found among the first ten by the model and by popularity, or the reason why this does not apply."""
    user = columns["user"]
    item = columns["item"]
    label = run.recipe.schema.label
    if label.task != "binary":
        return _left_out("the label is a number, so no item counts as found")
    if user is None or item is None:
        return _left_out(
            "the rows have no column of users, or none of items (`user` and `item` of the schema)"
        )
    if run.bundle is None:
        return _left_out("a run stored by `compare` has no network: train a bundle")
    if run.recipe.target_encoding is not None:
        return _left_out("target encoding depends on rows, so an item has no values of its own")
    prepared = run.prepared
    rows = run.test[label.name]
    columns_of = [
        as_text(part.frame.get_column(item))
        for part in (prepared.train, prepared.valid, prepared.test)
    ]
    users = max(
        USERS[0], min(USERS[1], MAX_SCORED_PAIRS // min(pl.concat(columns_of).n_unique(), ITEMS))
    )
    try:  # the ranking of `evaluate --ranking`, with fewer users and items where there are many
        task = RankingTask(
            prepared, run.recipe.schema, RankingSettings(candidates=ITEMS, users=users, seed=seed)
        )
    except DataError:
        return _left_out(
            "no test user has a positive row of an item that the user had not liked before"
        )
    except FieldwiseError as e:
        # the report has no such option
        return _left_out(str(e).removesuffix(", or omit the ranking"))
    try:
        ranked = rank_items(run.bundle, task)
    except FieldwiseError as e:
        return _left_out(str(e))
    hits = [np.bincount(ranked.user, place <= K) for place in (ranked.place, ranked.popular)]
    most = np.minimum(np.bincount(ranked.user), K)
    likes = dict(zip(as_text(task.items.get_column(item)), task.likes.tolist(), strict=True))
    model = auc(rows.y, rows.score)
    guess = auc(rows.y, [likes.get(one, 0) for one in columns_of[2]])
    shown = (
        "Of a positive and a negative test row sampled at random, the model scores the "
        f"positive one higher {of_100(model)} times of 100, and popularity {of_100(guess)} times."
    )
    return Section(TITLE, [*_blocks(hits[0] / most, hits[1] / most, task, seed), shown])


def _blocks(
    of_model: np.ndarray, of_popular: np.ndarray, task: RankingTask, seed: int
) -> list[Block]:
    """Both, from the share of each user's positive test items (K at most) among the first K, [U]."""
    model = float(of_model.mean())
    popular = float(of_popular.mean())
    gain = of_model - of_popular
    drawn = np.random.default_rng(seed).choice(gain, (DRAWS, len(gain))).mean(1)
    low, high = (float(one) for one in np.quantile(drawn, (0.025, 0.975)))
    more = f"{of_100(abs(model - popular))} of 100 {'more' if model > popular else 'fewer'} found"
    certain = low > 0 or high < 0
    words = f"{TITLE}: {more if certain else f'no significant difference ({more})'}"
    sentence = (
        f"{words}. Of 100 items that users liked, {of_100(model)} are among the model's first {K} "
        f"for them, and {of_100(popular)} among the {K} items with the most positive training rows."
    )
    blocks: list[Block] = [Caution(sentence) if certain and model < popular else sentence]
    if model <= popular or not certain:
        text = (
            "A model learns from its log which of the items that were shown or used are positive. It does not learn "
            "which items are shown or used at all, which popularity reflects: a recipe's `negatives` add rows of other "
            "items."
        )
        blocks.append(text)
    users = len(gain)
    items = task.items.height
    several = f"{count(users)} users" + (
        f" sampled of {count(task.all_users)}" if task.all_users > users else ""
    )
    which = f"{ITEMS:,} of {items:,} items sampled for each, with those they liked"
    which = which if items > ITEMS else f"{items:,} items, which are all"
    rows = []
    for name, one, other, ends in (
        ("found of each user's", of_model, of_popular, f"{100 * low:+.1f} to {100 * high:+.1f}"),
        ("users with one found", of_model > 0, of_popular > 0, ""),
    ):
        means = float(one.mean()), float(other.mean())
        rows.append([name, *map(percent, means), f"{100 * (means[0] - means[1]):+.1f}", ends])
    table = Table(
        [f"among the first {K}", "model", "popularity", "difference", "95 % interval"],
        rows,
        note=(
            f"{several} with positive test rows of items that they had not liked before; {which}, without those that "
            f"the user liked in training and validation rows (`fieldwise evaluate --ranking`). At most {K} of a user's "
            f"items can be found, and at most as many count. Interval: bootstrap over users, {DRAWS:,} replicates."
        ),
    )
    return [*blocks, table]


def _left_out(why: str) -> Section:
    return Section(TITLE, [f"Omitted: {why}."])


PAIRS = 15
DIRECTIONS = 12
TABLED_FIELDS = 16  # attention tables of more fields would be too large to read
UNDRAWN = "It is not drawn: shades would show differences that mean nothing."
METHOD_WORDS = {
    "terms": "the model's exact terms",
    "integrated_gradients": "integrated gradients",
    "occlusion": "the score's drop without the field",
}


def explanation_section(
    bundle: Bundle, frame: pl.DataFrame, label: str, *, rows: int, seed: int
) -> Section:
    """A section that explains a sample of test rows."""
    drawn = frame
    if frame.height > rows:
        drawn = frame[
            np.sort(np.random.default_rng(seed).choice(frame.height, rows, replace=False))
        ]
    subject = Subject.of(bundle, drawn, label=label)
    result = summary(explain_subject(subject, subject.usual_method, seed=seed), seed=seed)
    tables = summary_tables(result, PAIRS)
    largest = max((f["mean_size"] for f in result["fields"]), default=0.0) or 1.0
    which = f"{count(drawn.height)} of {count(frame.height)} test rows, sampled with seed {seed}"
    blocks: list[Block] = [
        (
            f"Over {which if frame.height > rows else f'all {count(frame.height)} test rows'}, compared with "
            f"the bundle's {count(len(subject.background))} sample rows. Contributions to the score by "
            f"{METHOD_WORDS[result['method']]}. Attention shows what a layer reads, not its effect on the score: "
            "`fieldwise explain --faithfulness` tests it."
        ),
        _barred(
            tables["fields"], [f["mean_size"] / largest for f in result["fields"]], 1, words=(2,)
        ),
        *_directions(effects(bundle, label=label), subject.settings.task),
    ]
    if result["pairs"]:
        blocks += _pairs(result["pairs"], tables["pairs"], subject.fields)
    if "attention" in result:
        blocks += _attention(np.array(result["attention"]["mean"]), result["attention"]["fields"])
    if "levels" in result:
        shares = np.array([level["matched_share"] for level in result["levels"]])
        names = [f"level {level['level']}" for level in result["levels"]]
        title = "The share of matches by level and item head"
        heads = tables["levels"].columns[3:]
        drawing = heat_map(shares, names, heads, title=title, most=1.0)
        note = "The share of a user's heads that match each item head best."
        blocks.append(Figure("Matches by item head", drawing, tables["levels"], note=note))
        gates = [float(row[2]) for row in tables["gates"].rows]
        blocks.append(_barred(tables["gates"], gates, 2, words=(1, 3)))
    return Section("Explanation", blocks)


def _barred(
    table: Table, shares: Sequence[float], after: int, *, words: Sequence[int], note: str = ""
) -> Table:
    """The table with bars of shares after a column."""
    cells = zip([table.columns, *table.rows], ["", *map(share_cell, shares)], strict=False)
    columns, *rows = ([*row[: after + 1], bar, *row[after + 1 :]] for row, bar in cells)
    return dataclasses.replace(table, columns=columns, rows=rows, words=words, note=note)


def _directions(effects: Sequence[dict[str, Any]], task: Task) -> list[Block]:
    """A chart per field of the mean prediction by value, all on one scale."""
    if not effects:
        return []
    ranges = [one["predictions"] for one in effects]
    factor, unit = (100.0, " %") if task == "binary" else (1.0, "")
    scale = wider(factor * min(map(min, ranges)), factor * max(map(max, ranges)))
    blocks: list[Block] = [
        (
            "Directions: the mean prediction if all of the bundle's sample rows had this value in the field and kept "
            f"their others, for the {min(DIRECTIONS, len(effects))} of {len(effects)} fields with the widest ranges, "
            "on one scale. Numbers are quantiles of these rows, other values the most frequent ones."
        )
    ]
    for one in effects[:DIRECTIONS]:
        title = f"Direction of {one['field']}"
        mean = [factor * p for p in one["predictions"]]
        rows = [
            [v, prediction_text(p, task)]
            for v, p in zip(one["values"], one["predictions"], strict=True)
        ]
        table = Table([one["field"], "mean prediction"], rows)
        if "numbers" in one:
            line = Line(x=one["numbers"], y=mean, points=True)
            drawing = line_chart([line], one["field"], "", title=title, y_span=scale, unit=unit)
        else:
            order = np.argsort([-p for p in mean], kind="stable")
            names = [one["values"][k] for k in order]
            values = [mean[k] for k in order]
            drawing = dot_chart(names, values, scale, title=title, unit=unit)
        blocks.append(Figure(title, drawing, table))
    return blocks


def _pairs(pairs: Sequence[dict[str, Any]], table: Table, fields: Sequence[str]) -> list[Block]:
    largest = pairs[0]["strength"] or 1.0
    top = _barred(
        table,
        [pair["strength"] / largest for pair in pairs],
        1,
        words=(2,),
        note="Strength: the root mean square of the part of the score due to both values together, beyond each alone.",
    )
    results: list[Block] = [top]
    for title, part in (
        ("Strength of pairs", "strength"),
        ("Attention of pairs, mean", "mean_attention"),
    ):
        if part not in pairs[0]:
            continue
        weights = np.array([pair[part] for pair in pairs])
        most = None
        if part == "mean_attention":
            if uniform := uniform_text(weights, 1 / len(pairs)):
                results.append(f"Of pairs, {uniform}, on average over these rows. {UNDRAWN}")
                continue
            most = darkest(weights, 1 / len(pairs))
        values = np.full((len(fields), len(fields)), np.nan)
        for pair, weight in zip(pairs, weights, strict=True):
            i, j = (fields.index(name) for name in pair["fields"])
            values[i, j] = values[j, i] = weight
        order = np.argsort(-weights, kind="stable")
        rows = [[" × ".join(pairs[k]["fields"]), number(float(weights[k]))] for k in order]
        drawing = heat_map(
            values, fields, fields, title=f"{title}: a tile for each pair of fields", most=most
        )
        note = f"The strongest tile: {number(float(weights.max()))}."
        results.append(
            Figure(title, drawing, Table(["pair", part.replace("_", " ")], rows), note=note)
        )
    return results


def _attention(mean_LHFF: np.ndarray, fields: Sequence[str]) -> list[Block]:
    layers, heads = mean_LHFF.shape[:2]
    equal = 1 / len(fields)
    if uniform := uniform_text(mean_LHFF, equal):
        return [f"In all heads {uniform}, on average over these rows. {UNDRAWN}"]
    most = darkest(mean_LHFF, equal)
    results: list[Block] = [
        (
            "Attention, averaged over these rows: each row of a map holds one field's weights for all fields, "
            f"which add up to 1. The largest weight of all heads is {number(float(mean_LHFF.max()))}; equal weights "
            f"would be {number(equal)}, and the darkest shade of all maps is {number(most)}."
        )
    ]
    for layer in range(layers):
        for head in range(heads):
            own = mean_LHFF[layer, head]
            title = f"Attention, layer {layer + 1}, head {head + 1}"
            if uniform := uniform_text(own, equal):
                results.append(f"{title}: {uniform}. {UNDRAWN}")
                continue
            if len(fields) <= TABLED_FIELDS:
                rows = [[f, *(number(float(v)) for v in own[k])] for k, f in enumerate(fields)]
                table = Table(["field", *fields], rows)
            else:
                best = np.argsort(-own, axis=None, kind="stable")[: 4 * PAIRS]
                cells = [divmod(int(k), len(fields)) for k in best]
                rows = [[fields[i], fields[j], number(float(own[i, j]))] for i, j in cells]
                table = Table(["query field", "key field", "weight"], rows, words=(1,))
            what = f"{title}: weights from query fields (rows) to key fields (columns)"
            drawing = heat_map(own, fields, fields, title=what, most=most)
            results.append(Figure(title, drawing, table))
    return results


@dataclass(frozen=True, kw_only=True)
class ReportSettings:
    """Settings of a report.

    Args:
        slices: fields or columns to evaluate by.
        rows: maximum number of test rows to explain.
        seed: seed for sampling these rows and for the bootstrap.
        device: where networks score.
    """

    slices: tuple[str, ...] = ()
    rows: int = 500
    seed: int = 0
    device: str = "cpu"


def report(
    folders: Sequence[Path],
    settings: ReportSettings | None = None,
    *,
    data_dir: Path,
    cache: Cache | None = None,
) -> str:
    """A self-contained HTML page about runs; the same runs, rows and settings give the same page.

    Args:
        folders: bundles of `fieldwise train`, or stored runs of `fieldwise compare`; the first is
            the baseline.
        settings: settings of the report.
        data_dir: the folder of public data sets.
        cache: cache of prepared data.

    Errors:
        BundleError: no run in a folder, or a damaged one.
        ConfigError: a run given twice; a field or column that the rows do not have.
        DataError: the data are missing, have changed since, or have no test rows.
    """
    settings = settings or ReportSettings()
    runs = [ReportedRun(folder, settings.device) for folder in folders]
    for k, run in enumerate(runs):
        if any(run.folder.samefile(other.folder) for other in runs[:k]):
            raise ConfigError(
                f"runs to report must differ, found {run.folder} twice: give each once"
            )
    by_name: dict[str, list[ReportedRun]] = {}
    for run in runs:
        by_name.setdefault(run.name, []).append(run)
    for name, namesakes in by_name.items():
        by_seed = len({run.recipe.seed for run in namesakes}) == len(namesakes)
        for run in namesakes if len(namesakes) > 1 else ():
            run.name = f"{name} ({f'seed {run.recipe.seed}' if by_seed else run.folder})"
    prepared: dict[str, Prepared] = {}  # compared runs usually share their rows
    for run in runs:
        key = repr((run.recipe.data, data_settings(run.recipe)))
        if key not in prepared:
            try:
                prepared[key] = prepare_recipe(run.recipe, data_dir, cache=cache)
            except FieldwiseError as e:
                raise type(e)(
                    f"the rows of the run {run.folder} cannot be prepared again: {e}"
                ) from None
        run.score(prepared[key])
    for run in runs:
        check_slices(settings.slices, run.frame, run.recipe.schema)
        id_columns(run.frame.columns, run.recipe.schema)
    chapters = [_chapter(run, settings) for run in runs]
    if len(runs) == 1:
        return render(runs[0].name, chapters)
    names = ", ".join(run.name for run in runs)
    about = (
        f"{len(runs)} runs: {names}. The first is the baseline of those with the same test rows."
    )
    first = Chapter(
        title="Runs compared", about=about, sections=comparison_sections(runs, settings.seed)
    )
    return render(f"{len(runs)} runs", [first, *chapters])


def _chapter(run: ReportedRun, settings: ReportSettings) -> Chapter:
    recipe = run.recipe
    frame = run.frame
    seed = settings.seed
    bundle = run.bundle
    columns = id_columns(frame.columns, recipe.schema)
    sections: list[Section] = []
    facts: list[tuple[str, str, str]] = []
    for label in run.labels:
        rows = run.test[label.name]
        binary = label.task == "binary"
        best = best_possible(run.prepared.test) if label is recipe.schema.label and binary else None
        kept = None if bundle is None else bundle.calibration.get(label.name)
        metrics, own = metrics_section(rows, run.group, binary, best, seed)
        if kept is not None:
            text = f"All metrics except those under Calibration use the {kept.kind} calibration of the bundle."
            metrics = Section(metrics.title, [*metrics.blocks, text])
        results = [words_section(rows, run.group, label), metrics]
        if binary:
            own.append(("positive rate", percent(float(np.mean(rows.y))), ""))
            results.append(curves_section({run.name: rows}))
            results.append(
                calibration_section(run.raw[label.name], run.valid.get(label.name), kept, seed)
            )
        else:
            results.append(numbers_section(rows))
        results.append(slices_section(settings.slices, frame, recipe.schema, rows, binary))
        results.append(cold_section(run.prepared.train.frame, frame, columns, rows, binary))
        if bundle is None:
            text = "A run stored by `compare` has no network to explain: train a bundle."
            results.append(Section("Explanation", [text]))
        else:
            results.append(
                explanation_section(bundle, frame, label.name, rows=settings.rows, seed=seed)
            )
        if len(recipe.schema.labels) > 1:
            results = [
                Section(f"{section.title}: {label.name}", section.blocks) for section in results
            ]
            own = [(f"{words} of {label.name}", value, more) for words, value, more in own]
        sections = sections + results
        facts = facts + own
    facts.append(("test rows", count(frame.height), ""))
    if "parameters" in run.record:
        facts.append(("parameters", count(run.record["parameters"]), ""))
    grouped = run.prepared.valid.group is not None
    monitor = monitored(recipe.training, Objective.of(*recipe.schema.labels), grouped=grouped)
    stopped = str(run.record.get("stopped", ""))
    best_epoch = run.record.get("best_epoch")
    sections.insert(2, learning_section(run.history, best_epoch, stopped, monitor))
    sections.insert(1, popularity_section(run, columns, seed))
    task = " and ".join(f"{label.name} ({label.task})" for label in run.labels)
    about = (
        f"{recipe.name}, seed {recipe.seed}: predicts {task} of {count(frame.height)} test rows."
    )
    in_mean = mean_sentence(run.record.get("network_share", 1.0))
    if in_mean is not None:
        about += f" {in_mean}"
    sections += [data_section(run), recipe_section(run)]
    return Chapter(title=run.name, about=about, facts=facts, sections=sections)


def comparison_sections(runs: Sequence[ReportedRun], seed: int) -> list[Section]:
    """A leaderboard for each task and set of test rows, and the curves of runs that share one."""
    records = {}
    by_name = {run.name: run for run in runs}
    for run in runs:
        label = run.recipe.schema.label
        rows = run.test[label.name]
        facts = {
            "task": label.task,
            "test_digest": scored_rows_digest(run.frame, run.recipe),
            "seed": run.recipe.seed,
            "test": binary_metrics(*rows) if label.task == "binary" else {"rmse": rmse(*rows)},
            **{name: run.record.get(name, 0) for name in ("parameters", "epochs", "seconds")},
            "seconds_per_epoch": run.record.get("seconds_per_epoch"),
            "network_share": run.record.get("network_share", 1.0),
        }
        records[run.name] = [
            with_words(RunRecord(run.folder, facts, (rows.y, rows.score)), run.recipe)
        ]
    boards = leaderboards(records, seed=seed)
    sections = []
    for board in boards:
        where = "" if len(boards) == 1 else f": {board.title}"
        sections.append(Section(f"Comparison{where}", [_board(board)]))
        if board.task == "binary" and len(board.lines) > 1:
            shown = [by_name[line.recipe] for line in board.lines]
            curves = curves_section(
                {run.name: run.test[run.recipe.schema.label.name] for run in shown}
            )
            labels = shown[0].recipe.schema.labels
            of = f" of {labels[0].name}" if len(labels) > 1 else ""
            sections.append(Section(f"{curves.title}{of}{where}", curves.blocks))
    return sections


def _board(board: Board) -> Table:
    main = shown_name(board.metric)
    by_auc = board.metric == "auc"
    others = [m for m in compared(board.task) if m != board.metric]
    own = [line.metrics[board.metric] for line in board.lines]
    span = wider(min(one.low for one in own), max(one.high for one in own), 0.01)
    columns = [
        "run",
        main,
        "",
        *map(shown_name, others),
        f"{main} − baseline",
        "p",
        *["DeLong p"] * by_auc,
    ]
    columns += ["parameters", "s/epoch"]
    rows = []
    for line, one in zip(board.lines, own, strict=True):
        against: list[str | Markup] = ["baseline", *[""] * (1 + by_auc)]
        if line.against is not None:
            gain = line.against[board.metric]
            tested = "-" if gain.delong_p is None else p_text(gain.delong_p)
            against = [measured(gain.estimate, "+"), p_text(gain.estimate.p), *[tested] * by_auc]
        epoch = "-" if line.seconds_per_epoch is None else f"{line.seconds_per_epoch:.1f}"
        cells = [measured(one), interval_cell(one, span)]
        cells += [measured(line.metrics[m]) for m in others]
        rows.append([line.recipe, *cells, *against, count(line.parameters), epoch])
    note = (
        f"{board.title}: the same {count(board.rows)} test rows for every run; the baseline is {board.base}. "
        f"Intervals and p: a paired bootstrap of these rows with {board.replicates:,} replicates. They do not include "
        "the variance over seeds, so another seed may change the order (`fieldwise compare --seeds 3` includes it)."
    )
    note = " ".join(
        [note, *(line.mean_sentence for line in board.lines if line.mean_sentence is not None)]
    )
    return Table(columns, rows, note=note)
