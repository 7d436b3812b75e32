"""Chat templates run with the habits they were written for, and cannot leave their sandbox."""

import pytest

from workers.text import bounds
from workers.text.template import BadTemplate, ChatTemplate, TemplateError


def rendered(source, messages=(), **variables):
    return ChatTemplate(source).render(messages, variables)


def test_blocks_are_trimmed():
    assert rendered("  {% if true %}\nyes\n  {% endif %}\n") == "yes\n"


def test_json_is_neither_sorted_nor_escaped():
    value = {"z": "é<b>", "a": [1, None]}
    assert rendered("{{ value | tojson }}", value=value) == '{"z": "é<b>", "a": [1, null]}'


def test_loops_can_be_left():
    assert (
        rendered("{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}")
        == "1"
    )


def test_the_templates_own_refusal_is_the_clients_error():
    with pytest.raises(TemplateError, match="roles must alternate"):
        rendered("{{ raise_exception('roles must alternate') }}")


def test_the_date_can_be_asked_for():
    assert len(rendered("{{ strftime_now('%Y-%m-%d') }}")) == 10


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ 1 // 0 }}",
        "{{ 'a' + 1 }}",
        "{% for i in range(10**9) %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ nothing.at.all }}",
    ],
)
def test_what_goes_wrong_inside_is_a_template_error(source):
    with pytest.raises(TemplateError):
        rendered(source, [])


RUNS_AWAY = {
    "a width that is a value": "{{ '{:>{w}}'.format(1, w=1500000000) | length }}",
    "a list of many items": "{{ (range(99999) | list * 100) | sort | list | length }}",
    "many pieces": "{% set s = 'ab ' * 5000000 %}{{ s.split() | length }}",
    "a long form of time": "{{ strftime_now('%c' * 4000000) | length }}",
    "range": "{% for i in range(10**9) %}{% endfor %}",
    "nested loops": "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}",
    "loops that skip": "{% for i in range(9999) %}{% for j in range(9999) if false %}"
    "{% endfor %}{% endfor %}",
    "macros that call": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}"
    "{% endmacro %}{{ f(40) }}",
    "recursive loop": "{% for i in [0] recursive %}{{ loop([i, i]) }}{% endfor %}",
    "times": "{{ 'a' * 10**9 }}",
    "times, turned": "{{ 10**8 * ['a'] }}",
    "power": "{{ 10**(10**9) }}",
    "digits": "{% set ns = namespace(n=3) %}{% for i in range(99) %}{% set ns.n = ns.n * ns.n %}"
    "{% endfor %}",
    "plus": "{% set ns = namespace(s='ab') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}"
    "{% endfor %}",
    "joined": "{% set ns = namespace(s='ab') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}"
    "{% endfor %}",
    "set block": "{% set ns = namespace(s='ab') %}{% for i in range(99) %}{% set t %}{{ ns.s }}"
    "{{ ns.s }}{% endset %}{% set ns.s = t %}{% endfor %}",
    "output": "{% set s = 'a' * 100000 %}{% for i in range(9999) %}{{ s }}{% endfor %}",
    "ljust": "{{ 'a'.ljust(10**9) }}",
    "center": "{{ 'a' | center(10**9) }}",
    "center, a constant": "{{ 'a' | center(1000000000) }}",
    "indent": "{{ ('a\n' * 99999) | indent(99999) }}",
    "replace": "{{ ('a' * 99999).replace('a', 'b' * 99999) }}",
    "replace filter": "{{ ('a' * 99999) | replace('a', 'b' * 99999) }}",
    "join": "{{ ('b' * 99999).join('a' * 99999) }}",
    "join filter": "{{ (['a'] * 99999) | join('b' * 99999) }}",
    "join of what is drawn": "{{ range(9999) | map('string') | join('b' * 99999) }}",
    "format, old": "{{ '%999999999d' % 1 }}",
    "format method": "{{ '{:999999999}'.format(1) }}",
    "format of a width": "{{ '%*d' % (10**9, 1) }}",
    "batch": "{{ [1] | batch(10**9, 'x') | list }}",
    "a long life": "{% set s = 'a' * 9999999 %}{% for i in range(99999) %}{{ s.find('b') }}"
    "{{ s.count('c') }}{% endfor %}",
}
REACHES = {
    "class": "{{ ''.__class__.__mro__ }}",
    "globals": "{{ raise_exception.__globals__.x }}",
    "globals of a macro": "{% macro f() %}{% endmacro %}{{ f.__init__.__globals__.x }}",
    "change": "{{ messages.append(1) }}",
    "environment": "{{ self._TemplateReference__context.environment.x }}",
    "format": "{{ '{0.__class__.__mro__}'.format(1) }}",
}


@pytest.mark.parametrize("case", RUNS_AWAY | REACHES)
def test_a_template_that_must_not_run_is_told_apart(case, monkeypatch):
    """From one that refuses these messages: such a model is not added."""
    monkeypatch.setattr(bounds, "MAX_STEPS", 20_000)
    monkeypatch.setattr(bounds, "MAX_SECONDS", 0.2)
    with pytest.raises(BadTemplate, match="the model's chat template") as caught:
        ChatTemplate((RUNS_AWAY | REACHES)[case]).try_out()
    assert "\n" not in str(caught.value)


def test_a_template_of_many_messages_is_within_its_bounds():
    """Loops in loops over a thousand messages, as some templates look for the last question."""
    source = "{% for m in messages %}{% for n in messages %}{% endfor %}{{ m.content }}{% endfor %}"
    messages = [{"role": "user", "content": "x" * 1000}] * 1000
    assert len(rendered(source, messages)) == 10**6


def test_what_templates_usually_do_still_works():
    source = (
        "{%- for m in messages[::-1] -%}{{ loop.index0 }}/{{ loop.length }}"
        "{{ ',' if not loop.last else '.' }}{{ (m.content | trim).split('b')[-1] ~ m.role }}"
        "{{ loop.previtem is defined }}{{ '%s!' % m.role }}{{ '{}'.format(1) }}{% endfor -%}"
        "{% set x %}{{ messages | map(attribute='role') | join('+') }}{% endset %}{{ x | upper }}"
    )
    messages = [{"role": "r", "content": " abc "}, {"role": "q", "content": ""}]
    assert rendered(source, messages) == "0/2,qFalseq!11/2.crTruer!1R+Q"


def test_texts_of_any_size_have_no_maker():
    """lipsum makes a text of n paragraphs in one step."""
    with pytest.raises(TemplateError):
        rendered("{{ lipsum(n=10**7) | length }}", [])


def test_a_template_of_great_length_is_refused():
    with pytest.raises(BadTemplate, match="more than 1048576 characters"):
        ChatTemplate("x" * (2**20 + 1))


def test_a_template_nested_too_deeply_is_refused():
    with pytest.raises(BadTemplate, match="broken"):
        ChatTemplate("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}")


def test_a_template_that_does_not_parse_is_refused():
    with pytest.raises(TemplateError, match="broken"):
        ChatTemplate("{% if %}")


def test_a_template_that_refuses_every_conversation_is_refused():
    with pytest.raises(BadTemplate, match=r"refuses even one question: .* not today"):
        ChatTemplate("{{ raise_exception('not today') }}").try_out()
    ChatTemplate("{% if messages|length > 1 %}{{ raise_exception('x') }}{% endif %}").try_out()
