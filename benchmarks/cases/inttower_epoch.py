"""An epoch of IntTower on MovieLens-1M."""

from benchmarks.case import Case, Contender, Settings, Target
from benchmarks.cases.common import LAZY
from benchmarks.frappe import data_folder
from fieldwise.models.build import model_to_dict
from fieldwise.runs.data import prepare_recipe
from fieldwise.runs.recipe import load_recipe


def inttower_epoch(settings: Settings) -> Case:
    """An epoch of IntTower on MovieLens-1M, compared with the same model in plain PyTorch."""
    folder = data_folder()
    real = folder is not None and (folder / "ml-1m").is_dir() and settings.size != "tiny"
    wanted = settings.rows_of(400_000, 200_000, 500)
    recipe = load_recipe(*(("movielens-1m/inttower",) if real else ("simulated/inttower", [f"data.rows={wanted}"])))
    train = prepare_recipe(recipe, folder or settings.folder).train.table
    train.save(settings.folder / "table")
    batch = settings.pick(2048, 2048, 64)
    model = {**model_to_dict(recipe.model), "cir_weight": 0.1}
    options = {
        "table": str(settings.folder / "table"),
        "batch": batch,
        "model": model,
        "steps": settings.pick(30, 10, 2),
    }
    return Case(
        title="An epoch of IntTower",
        about=f"{'MovieLens-1M with ids' if real else 'A simulated log'}, {len(train):,} training rows, batch {batch}, "
        f"D {model['embedding_dim']}, layers {' x '.join(map(str, model['hidden']))}, {model['user_heads']} user and "
        f"{model['item_heads']} item heads of {model['head_dim']}, contrastive loss on. Some steps are timed and "
        "scaled to an epoch. The plain version has one module per field, einsum MaxSim and dense Adam, and reads the "
        "loss at every step.",
        contenders=(
            Contender(name="fieldwise", make="inttower:epoch", options=options),
            Contender(name="fieldwise, lazy Adam", make="inttower:epoch", options={**options, "training": LAZY}),
            Contender(name="fieldwise, plain ops", make="inttower:epoch", options={**options, "ops": "plain"}),
            Contender(name="plain PyTorch", make="plain_inttower:epoch", options=options),
        ),
        targets=(Target.faster("fieldwise", "plain PyTorch", 4),),
    )
