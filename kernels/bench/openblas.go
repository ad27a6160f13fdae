//go:build linux || darwin

package main

import (
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/ebitengine/purego"
)

// openBLAS binds what the bench compares with; nil when it is not installed.
type openBLAS struct {
	sgemm   func(order, ta, tb int32, m, n, k int32, alpha float32, a *float32, lda int32, b *float32, ldb int32, beta float32, c *float32, ldc int32)
	ssyrk   func(order, uplo, trans int32, n, k int32, alpha float32, a *float32, lda int32, beta float32, c *float32, ldc int32)
	spotrf  func(uplo *byte, n *int32, a *float32, lda, info *int32)
	strtri  func(uplo, diag *byte, n *int32, a *float32, lda, info *int32)
	threads func(int32)
	config  func() string
}

// restAfter is how long OpenBLAS workers spin after a call.
const restAfter = 35 * time.Millisecond

func loadOpenBLAS() *openBLAS {
	for _, name := range []string{"libopenblas.so.0", "libopenblas.so", "libopenblas.dylib"} {
		h, err := purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_LOCAL)
		if err != nil {
			continue
		}
		b := &openBLAS{}
		for symbol, f := range map[string]any{
			"cblas_sgemm": &b.sgemm, "cblas_ssyrk": &b.ssyrk, "spotrf_": &b.spotrf, "strtri_": &b.strtri,
			"openblas_set_num_threads": &b.threads, "openblas_get_config": &b.config,
		} {
			at, err := purego.Dlsym(h, symbol)
			if err != nil {
				return nil
			}
			purego.RegisterFunc(f, at)
		}
		return b
	}
	return nil
}

func (b *openBLAS) name() string {
	if b == nil {
		return "not installed"
	}
	return strings.TrimSpace(b.config())
}

// withoutOverrides starts the program again without the variables that make
// OpenBLAS choose another CPU's kernels: it reads them when it is loaded, before any
// code of ours could remove them in the same process.
func withoutOverrides() {
	var env []string
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "OPENBLAS_CORETYPE=") && !strings.HasPrefix(e, "OPENBLAS_L2_SIZE=") {
			env = append(env, e)
		}
	}
	if len(env) == len(os.Environ()) {
		return
	}
	if self, err := os.Executable(); err == nil {
		_ = syscall.Exec(self, os.Args, env) // returns only if it failed; then we go on as we are
	}
}
