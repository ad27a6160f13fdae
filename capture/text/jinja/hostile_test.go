package jinja_test

import (
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quire/capture/text/jinja"
)

// loop runs a statement n times over a namespace that starts with x.
func loop(x, statement string) string {
	return "{% set ns = namespace(x=" + x + ", l=[]) %}{% for i in range(90) %}" + statement + "{% endfor %}{{ ns.x is defined }}"
}

// TestHostileTemplates: templates that ask for more memory or depth than there is end in an error after a bounded amount of both.
func TestHostileTemplates(t *testing.T) {
	for name, src := range map[string]string{
		"doubled text":           loop("'x'", "{% set ns.x = ns.x + ns.x %}"),
		"doubled text, tilde":    loop("'x'", "{% set ns.x = ns.x ~ ns.x %}"),
		"doubled list":           loop("[1]", "{% set ns.x = ns.x + ns.x %}"),
		"doubled tuple":          loop("(1,)", "{% set ns.x = ns.x + ns.x %}"),
		"doubled by replace":     loop("'x'", "{% set ns.x = ns.x | replace('x', 'xx') %}"),
		"doubled by join":        loop("'x'", "{% set ns.x = [ns.x, ns.x] | join %}"),
		"doubled by format":      loop("'x'", "{% set ns.x = '%s%s' % (ns.x, ns.x) %}"),
		"doubled by str.format":  loop("'x'", "{% set ns.x = '{0}{0}'.format(ns.x) %}"),
		"doubled by capture":     loop("'x'", "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}"),
		"squared number":         loop("99", "{% set ns.x = ns.x * ns.x %}"),
		"kept texts":             loop("'x' * 15000000", "{% set ns.l = ns.l + [ns.x ~ i] %}"),
		"kept captures":          loop("'x' * 15000000", "{% set y %}{{ ns.x }}{% endset %}{% set ns.l = ns.l + [y] %}"),
		"billion laughs, repr":   loop("[1]", "{% set ns.x = [ns.x, ns.x] %}") + "{{ ns.x }}",
		"billion laughs, json":   loop("[1]", "{% set ns.x = [ns.x, ns.x] %}") + "{{ ns.x | tojson }}",
		"billion laughs, equal":  "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.x == ns.y }}",
		"billion laughs, dict":   loop("{}", "{% set ns.x = {'a': ns.x, 'b': ns.x} %}") + "{{ ns.x }}",
		"deep value, repr":       "{% set ns = namespace(x=[]) %}" + strings.Repeat("{% for i in range(2000) %}", 1) + "{% for j in range(6) %}{% set ns.x = [ns.x] %}{% endfor %}{% endfor %}{{ ns.x }}",
		"deep value, equal":      "{% set ns = namespace(x=[], y=[]) %}{% for i in range(1000) %}{% for j in range(30) %}{% set ns.x = [ns.x] %}{% set ns.y = [ns.y] %}{% endfor %}{% endfor %}{{ ns.x == ns.y }}",
		"wide percent format":    "{{ '%1000000000d' % 1 }}",
		"wide percent star":      "{{ '%*d' % (1000000000, 1) }}",
		"precise percent format": "{{ '%.1000000000f' % 1.5 }}",
		"wide format":            "{{ '{:>1000000000}'.format(1) }}",
		"precise format":         "{{ '{:.1000000000f}'.format(1.5) }}",
		"nested format":          "{{ '{:>{}}'.format(1, 1000000000) }}",
		"ljust":                  "{{ 'x'.ljust(1000000000) }}",
		"center":                 "{{ 'x' | center(1000000000) }}",
		"indent":                 "{{ 'x\ny' | indent(1000000000) }}",
		"tojson indent":          "{{ [[1]] | tojson(indent=1000000000) }}",
		"expandtabs":             "{{ 'x\ty'.expandtabs(1000000000) }}",
		"zfill":                  "{{ '1'.zfill(1000000000) }}",
		"batch":                  "{{ [1] | batch(1000000000, 'x') | list }}",
		"slice":                  "{{ [1] | slice(1000000000) | list }}",
		"wordwrap":               "{{ 'x y' | wordwrap(1, wrapstring='y' * 15000000) }}{{ 'x y z' | wordwrap(1, wrapstring='y' * 15000000) }}",
		"list times":             "{{ [1] * 1000000000 }}",
		"range":                  "{{ range(1000000000) | list }}",
		"power":                  "{{ 10 ** 10000000 }}",
		"parentheses":            "{{ " + strings.Repeat("(", 100000) + "1" + strings.Repeat(")", 100000) + " }}",
		"brackets":               "{{ " + strings.Repeat("[", 100000) + strings.Repeat("]", 100000) + " }}",
		"nots":                   "{{ " + strings.Repeat("not ", 100000) + "1 }}",
		"signs":                  "{{ " + strings.Repeat("- ", 100000) + "1 }}",
		"powers":                 "{{ " + strings.Repeat("1 ** ", 100000) + "1 }}",
		"sum":                    "{{ 1" + strings.Repeat(" + 1", 100000) + " }}",
		"ands":                   "{{ 1" + strings.Repeat(" and 1", 100000) + " }}",
		"filters":                "{{ 'x'" + strings.Repeat(" | upper", 100000) + " }}",
		"attributes":             "{{ x" + strings.Repeat(".a", 100000) + " }}",
		"items":                  "{{ x" + strings.Repeat("[0]", 100000) + " }}",
		"tests":                  "{{ 1" + strings.Repeat(" is defined", 100000) + " }}",
		"elses":                  "{{ 1" + strings.Repeat(" if 0 else 1", 100000) + " }}",
		"ifs":                    strings.Repeat("{% if 1 %}", 60000) + strings.Repeat("{% endif %}", 60000),
		"elifs":                  "{% if 0 %}" + strings.Repeat("{% elif 0 %}", 60000) + "{{ nothing.x }}{% else %}{{ nothing.x }}{% endif %}",
		"for without end":        strings.Repeat("{% for i in range(100000) %}", 5) + "{{ i }}" + strings.Repeat("{% endfor %}", 5),
		"macro calls itself":     "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
		"a text of megabytes":    strings.Repeat("x", 2<<20) + "{{ 1 }}",
		"number":                 "{{ " + strings.Repeat("9", 200000) + " + 1 }}",
	} {
		t.Run(name, func(t *testing.T) {
			if name == "for without end" && os.Getenv("QUIRE_LONG") == "" {
				return // millions of steps: with the long suites
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			start := time.Now()
			tmpl, err := jinja.Compile(src)
			if err == nil {
				_, err = tmpl.Render(nil, time.Time{})
			}
			runtime.ReadMemStats(&after)
			used := after.TotalAlloc - before.TotalAlloc
			t.Logf("%v, %d MB allocated: %.80v", time.Since(start).Round(time.Millisecond), used>>20, err)
			require.Error(t, err)
			require.Less(t, used, uint64(1<<30), "bytes allocated in all")
		})
	}
}
