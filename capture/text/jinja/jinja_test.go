package jinja_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quire/capture/text/jinja"
)

// TestWhitespaceAndValues holds small templates against what Jinja2 3.1 with trim_blocks and lstrip_blocks gives (literals).
func TestWhitespaceAndValues(t *testing.T) {
	for _, c := range []struct{ name, in, want string }{
		{"final newline goes", "a\n", "a"},
		{"block takes its newline", "{% if true %}\nx\n{% endif %}\ny", "x\ny"},
		{"indent before a block goes", "  {% if true %}x{% endif %}", "x"},
		{"plus keeps", "  {%+ if true +%}\nx{% endif %}", "  \nx"},
		{"minus strips", "a \n {{- 'b' -}} \n c", "abc"},
		{"raw", "{% raw %}{{ x }}{% endraw %}", "{{ x }}"},
		{"comment", "a{# no #}b", "ab"},
		{"chained comparison", "{{ 1 < 2 < 3 }} {{ 1 == 1.0 }}", "True True"},
		{"floor division", "{{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }}", "-4 2 3.5"},
		{"big numbers", "{{ 2 ** 70 }}", "1180591620717411303424"},
		{"unary before power", "{{ -2 ** 2 }}", "4"},
		{"tojson keeps order", "{{ {'b': 1, 'a': [1.0, none, 'é<']} | tojson }}", `{"b": 1, "a": [1.0, null, "é<"]}`},
		{"loop scope", "{% set x = 1 %}{% for i in [1] %}{% set x = 2 %}{% endfor %}{{ x }}", "1"},
		{"namespace", "{% set n = namespace(x=1) %}{% for i in [1] %}{% set n.x = 2 %}{% endfor %}{{ n.x }}", "2"},
		{"undefined prints nothing", "[{{ nothing }}]", "[]"},
		{"date", "{{ strftime_now('%d %b %Y') }}", "26 Jul 2024"},
	} {
		t.Run(c.name, func(t *testing.T) {
			tmpl, err := jinja.Compile(c.in)
			require.NoError(t, err)
			out, err := tmpl.Render(nil, time.Date(2024, 7, 26, 0, 0, 0, 0, time.UTC))
			require.NoError(t, err)
			require.Equal(t, c.want, out.Text)
		})
	}
}

// TestRefused says what is refused at once, and what when it is reached; nothing is skipped in silence.
func TestRefused(t *testing.T) {
	for _, in := range []string{"{% include 'x' %}", "{% extends 'x' %}", "{{ x | nofilter }}", "{{ x is notest }}", "{% if %}", "{{", "{% for x in y %}", "{{ 'a }}", "{{ (1 }}", "{% set 1 = 2 %}"} {
		_, err := jinja.Compile(in)
		require.Error(t, err, in)
	}
	for _, in := range []string{"{{ nothing.x }}", "{{ 'a' + 1 }}", "{{ [].append(1) }}", "{{ 1 / 0 }}", "{{ 'x' * 100000000 }}", "{{ range(1000000) }}", "{{ 9 ** 99999 }}",
		"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "{% break %}"} {
		tmpl, err := jinja.Compile(in)
		require.NoError(t, err, in)
		_, err = tmpl.Render(nil, time.Time{})
		require.Error(t, err, in)
	}
}

func FuzzTemplate(f *testing.F) {
	for _, s := range []string{"{%- for m in messages -%}{{ m.role | upper }}{% endfor %}", "{{ {'a': [1, 2.5]} | tojson(indent=2) }}", "{% macro f(x='y') %}{{ x }}{% endmacro %}{{ f() }}", "{{ '%5.1f|%r' % (1.5, 'x') }}",
		"{{ '{:>5}'.format(3) }}", "{# c -#} {% raw %}x{% endraw -%}", "{{ 'abc'[::-1] }}{{ -3 | abs }}", "{% set ns = namespace(a=1) %}{% set ns.a = ns.a + 1 %}"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, src string) {
		tmpl, err := jinja.Compile(src)
		if err != nil {
			return
		}
		messages, err := jinja.FromJSON([]byte(`[{"role":"user","content":"x"}]`))
		require.NoError(t, err)
		_, _ = tmpl.Render(map[string]any{"messages": messages}, time.Time{})
	})
}
