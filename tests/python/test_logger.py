"""Messages with levels."""

from __future__ import annotations

import logging
import os
import subprocess
import sys

import pytest
import tenure
from tenure import logger
from tenure.logger import level_enum


@pytest.fixture(autouse=True)
def as_it_was():
    yield
    logger.write_to(None)
    logger.set_logging_level(level_enum.info)
    logger.set_flush_level(level_enum.info)


@pytest.mark.parametrize("level", list(level_enum))
def test_levels(level):
    logger.set_logging_level(level)
    assert logger.get_logging_level() is level
    logger.set_flush_level(level)
    assert logger.get_flush_level() is level
    assert logger.should_log(level)
    assert [other for other in level_enum if logger.should_log(other)] == list(level_enum)[level:]


@pytest.mark.parametrize("level", ["INFO", 3, 100, None, 1.25, [1], logging.INFO])
def test_what_is_no_level(level):
    for use in (logger.set_logging_level, logger.set_flush_level, logger.should_log, lambda x: logger.message(x, "")):
        with pytest.raises(TypeError, match="level_enum"):
            use(level)


def test_messages_reach_pythons_logging(caplog):
    with caplog.at_level(logging.DEBUG, "tenure"):
        tenure.reinitialize(pool_allocator=True)
        logger.message(level_enum.debug, "not at this level")
        logger.set_logging_level(level_enum.debug)
        logger.message(level_enum.debug, "at this one")
        logger.message(level_enum.off, "never")
    text = caplog.text
    assert "current resource" in text and "at this one" in text and "not at" not in text and "never" not in text


def test_a_file(tmp_path):
    file = tmp_path / "messages.log"
    logger.write_to(file)
    assert not file.exists()
    logger.set_flush_level(level_enum.warn)
    logger.message(level_enum.info, "held back")
    assert "held back" not in file.read_text()
    logger.message(level_enum.warn, "at once")
    assert "held back" in file.read_text() and "at once" in file.read_text()
    logger.message(level_enum.info, "more")
    logger.flush_logger()
    assert "more" in file.read_text()
    logger.message(level_enum.info, "last")
    logger.write_to(None)
    assert "last" in file.read_text()
    logger.message(level_enum.error, "elsewhere")
    assert "elsewhere" not in file.read_text()


def test_a_file_that_cannot_be_written(tmp_path, caplog):
    logger.write_to(tmp_path / "nowhere" / "x.log")
    logger.message(level_enum.error, "goes on")
    logger.message(level_enum.error, "and on")
    assert "not written to" in caplog.text and "and on" in caplog.text
    assert caplog.text.count("not written to") == 1


@pytest.mark.parametrize("variable, module", [("TENURE_DEBUG_LOG_FILE", "tenure"), ("RMM_DEBUG_LOG_FILE", "tenure.rmm")])
def test_the_environment(tmp_path, variable, module):
    file = tmp_path / "messages.log"
    code = f"import {module}; {module}.reinitialize()"
    subprocess.run([sys.executable, "-c", code], env=dict(os.environ, **{variable: str(file)}), check=True, timeout=60)
    assert "current resource" in file.read_text()
