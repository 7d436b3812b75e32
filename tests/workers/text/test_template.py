"""Chat templates run with the habits they were written for, and cannot leave their sandbox."""

import pytest

from workers.text.template import ChatTemplate, TemplateError


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


def test_a_template_that_does_not_parse_is_refused():
    with pytest.raises(TemplateError, match="broken"):
        ChatTemplate("{% if %}")
