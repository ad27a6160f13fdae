//go:build !linux && !darwin

package main

import "time"

const restAfter = time.Duration(0)

// openBLAS is not bound on this system.
type openBLAS struct {
	sgemm   func(order, ta, tb int32, m, n, k int32, alpha float32, a *float32, lda int32, b *float32, ldb int32, beta float32, c *float32, ldc int32)
	ssyrk   func(order, uplo, trans int32, n, k int32, alpha float32, a *float32, lda int32, beta float32, c *float32, ldc int32)
	spotrf  func(uplo *byte, n *int32, a *float32, lda, info *int32)
	strtri  func(uplo, diag *byte, n *int32, a *float32, lda, info *int32)
	threads func(int32)
}

func loadOpenBLAS() *openBLAS    { return nil }
func (b *openBLAS) name() string { return "not bound on this system" }
func withoutOverrides()          {}
