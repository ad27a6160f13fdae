package asm_test

import (
	"bufio"
	"os"
	"regexp"
	"strings"
	"testing"
)

// Registers 16 to 31 exist with AVX-512 only, but the generator's allocator hands
// them out when a kernel runs short. No function for an AVX2 machine may have one.
func TestAVX2KernelsUseSixteenRegisters(t *testing.T) {
	high := regexp.MustCompile(`\b[XYZ](1[6-9]|2[0-9]|3[01])\b|\bZ[0-9]+\b|\bK[0-7]\b`)
	for _, name := range []string{"gemm_amd64.s", "elem_amd64.s"} {
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		function, functions := "", 0
		for lines := bufio.NewScanner(f); lines.Scan(); {
			line := lines.Text()
			if strings.HasPrefix(line, "TEXT ") {
				function, _, _ = strings.Cut(strings.TrimPrefix(line, "TEXT ·"), "(")
				functions++
			}
			if !strings.Contains(function, "AVX512") && high.MatchString(line) && !strings.HasPrefix(line, "//") {
				t.Errorf("%s, %s: %s", name, function, strings.TrimSpace(line))
			}
		}
		if functions < 40 {
			t.Errorf("%s has %d functions", name, functions)
		}
	}
}
