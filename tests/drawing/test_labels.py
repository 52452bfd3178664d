"""Labels stay in their boxes: by estimate, and as a browser draws the pictures of flows."""

from __future__ import annotations

from pathlib import Path

import pytest

from oxcart.cli.drawing import drawing
from oxcart.drawing.graphs import Node, graph
from oxcart.drawing.labels import fitted, width_of
from oxcart.model.flow import FlowView
from oxcart.model.job import Job
from oxcart.model.state import State
from tests.browser import Browser

STYLES = Path("src/oxcart/http/web/static")
#: Names that are wider than most, and two that fit.
NAMES = (
    "pay",
    "charge-the-card-of-a-customer-who-has-a-long-name",
    "W" * 60,
    "iiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiii",
    "請求書を顧客に電子メールで送信する仕事請求書を顧客に",
    "выставить-счёт-клиенту-и-отправить-письмо",
    "MAKE %%%% <b>@@@@@@@@@@@@@@@@@@</b> &amp;",
    "🚚" * 40,
)
UUID = "f1add965-0170-4ba8-b663-d120ed85c143"
#: Texts that reach over the border of the box in their group, as the browser draws them.
OUTSIDE = """[...document.querySelectorAll("g")].flatMap(group => {
    const border = group.querySelector("rect").getBBox();
    return [...group.querySelectorAll("text")].map(text => {
        const box = text.getBBox();
        return {text: text.textContent, over: box.x + box.width - border.x - border.width,
                under: box.y + box.height - border.y - border.height};
    });
})"""


def job(name: str, queue: str) -> Job:
    return Job(
        id=UUID, name=name, queue=queue, data={}, timestamp=1, state=State.DEAD_LETTER, dead_reason="x"
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_fitted_text_has_room(name: str) -> None:
    for size, bold in ((10, False), (13, True)):
        cut = fitted(name, 154, size, bold=bold)
        assert width_of(cut, size, bold=bold) <= 154
        assert cut == name or (name.startswith(cut[:-1]) and cut[-1] == "…")
    assert fitted(name, 100_000, 10) == name


def test_no_room_leaves_the_ellipsis() -> None:
    assert fitted("long", 0, 10) == "…"
    assert fitted("", 0, 10) == ""


def test_a_browser_draws_every_text_in_its_box(tmp_path: Path) -> None:
    views = [FlowView(job(name, queue), "failed") for name in NAMES for queue in ("shop", name[:50])]
    keys = [f"bull:{name}:{UUID}" for name in NAMES]
    parts = [drawing(view, keys) for view in views]
    nodes = [
        Node(str(at), name, f"{name} · dead letter · 12 ms", "s-failed", "#") for at, name in enumerate(NAMES)
    ]
    sheet = "\n".join(file.read_text("utf-8") for file in sorted(STYLES.glob("*.css")))
    command, board = tmp_path / "command.html", tmp_path / "board.html"
    command.write_text(f"<!doctype html><meta charset=utf-8>{''.join(parts)}", "utf-8")
    board.write_text(
        f"<!doctype html><meta charset=utf-8><style>{sheet}</style>{graph(nodes, [], [], 'x')}", "utf-8"
    )
    with Browser() as browser:
        page = browser.page()
        for file, least in ((command, 2 * len(views)), (board, 2 * len(nodes))):
            page.goto(file.as_uri())
            drawn = page.evaluate(OUTSIDE)
            assert len(drawn) >= least
            assert [one for one in drawn if one["over"] > 0 or one["under"] > 0] == []


def test_a_job_keeps_its_state_and_the_beginning_of_its_id() -> None:
    drawn = drawing(FlowView(job("pay", "shop"), "failed"))
    assert "shop/f1add965" in drawn
    assert " · dead_letter</text>" in drawn
    assert " · failed</text>" in drawing(FlowView(job("pay", "shop"), "failed"), wire=True)
