import numpy as np
import pytest

from fieldwise import FM, ConfigError, NegativeSampling, TrainingSettings
from fieldwise.config import parse, to_plain
from fieldwise.data.prepare.settings import RandomSplit


def test_a_setting_out_of_range_is_named(subtests):
    for settings, sentence in [
        ({"batch_size": 0}, "batch_size must be at least 1, found 0"),
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"evaluations_per_epoch": 0}, "evaluations_per_epoch must be at least 1"),
        ({"patience": 0}, "patience must be at least 1"),
        ({"plateau_patience": 0}, "plateau_patience must be at least 1"),
        ({"learning_rate": 0.0}, "learning_rate must be positive"),
        ({"learning_rate": float("nan")}, "learning_rate must be finite"),
        ({"clip_norm": float("inf")}, "clip_norm must be finite"),
        ({"clip_norm": 0.0}, "clip_norm must be positive"),
        ({"plateau_factor": 0.0}, r"plateau_factor must be in \(0, 1\]"),
        ({"plateau_factor": 1.5}, r"plateau_factor must be in \(0, 1\]"),
        ({"average": -0.1}, "average must be at least 0 and below 1, found -0.1"),
        ({"average": 1.0}, "average must be at least 0 and below 1, found 1.0"),
        ({"average": float("nan")}, "average must be finite"),
        ({"adagrad_accumulator": -1.0}, "adagrad_accumulator must not be negative"),
        ({"l2": {"p": -1.0}}, "l2 strength of 'p' must not be negative"),
        ({"l2": {"p": float("nan")}}, "l2.p must be finite"),
        ({"epochs": "3"}, "epochs must be of type int, found '3'"),
        ({"epochs": 2.5}, "epochs must be of type int, found 2.5"),
        ({"epochs": True}, "epochs must be of type int, found True"),
        ({"batch_size": None}, "batch_size must be of type int, found None"),
        ({"learning_rate": "x"}, "learning_rate must be of type float, found 'x'"),
        ({"l2": 0.1}, "l2 must be a table of settings, found 0.1"),
        ({"device": 0}, "device must be of type str, found 0"),
        ({"epoch": 3}, "TrainingSettings has no setting 'epoch': did you mean 'epochs'"),
        ({"optimizer": "adamw"}, "optimizer must be one of 'adam', .*, found 'adamw'"),
        (
            {"precision": "float16"},
            "precision must be one of 'float32', 'bfloat16', found 'float16'",
        ),
        (
            {"embedding_update": "sparse"},
            "embedding_update must be one of 'auto', 'dense', 'lazy', found 'sparse'",
        ),
        (
            {"optimizer": "rowwise_adagrad", "embedding_update": "dense"},
            "only the rows of a batch, found embedding_up",
        ),
    ]:
        with (
            subtests.test(settings=settings, sentence=sentence),
            pytest.raises(ConfigError, match=sentence),
        ):
            TrainingSettings(**settings)


def test_settings_have_names_and_python_s_own_types():
    for settings, first in ((TrainingSettings, "loss"), (FM, "embedding_dim")):
        with pytest.raises(
            ConfigError,
            match=rf"takes settings by name, as in {settings.__name__}\({first}=3\); found 3",
        ):
            settings(3)
    made = TrainingSettings(epochs=np.int64(3), learning_rate=np.float32(0.5), clip_norm=1)
    assert (type(made.epochs), type(made.learning_rate), type(made.clip_norm)) == (
        int,
        float,
        float,
    )
    assert made == TrainingSettings(epochs=3, learning_rate=0.5, clip_norm=1.0)
    with pytest.raises(ConfigError, match="per_positive must be of type int, found '2'"):
        NegativeSampling(user="u", item="i", per_positive="2")
    with pytest.raises(ConfigError, match="valid must be of type float, found 'a'"):
        RandomSplit(valid="a")


def test_a_mapping_that_is_wrong_is_one_sentence(subtests):
    for settings, sentence in [
        (
            {"optimizer": "adm"},
            "training.optimizer must be one of 'adam', 'adagrad', 'rowwise_adagrad', 'sgd', 'lbfgs', found 'adm'",
        ),
        ({"learning_rat": 1.0}, "did you mean 'learning_rate'"),
        ({"epochs": 2.5}, "training.epochs must be of type int"),
        ({"l2_rows": "some"}, "training.l2_rows must be one of 'all', 'touched'"),
        ({"monitor": "f1"}, "training.monitor"),
    ]:
        with (
            subtests.test(settings=settings, sentence=sentence),
            pytest.raises(ConfigError, match=sentence),
        ):
            parse(TrainingSettings, settings, "training")


def test_settings_survive_plain_values():
    settings = TrainingSettings(
        optimizer="sgd", l2={"attention.W": 2.0}, clip_norm=1, monitor="logloss"
    )
    assert parse(TrainingSettings, to_plain(settings), "training") == settings
