package quant

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"unsafe"
)

// Sentinels of bad input; match with errors.Is.
// ValueError is a value that no solve may see, and where it stands.
type ValueError struct {
	What  string // "H" or "W" or "scale"
	Site  string // the caller's name of the statistic or module, may be empty
	Row   int    // row of the matrix
	Col   int    // column, or group for a scale
	Value float64
	Try   string
	Err   error // one of the sentinels
}

func (e *ValueError) Error() string {
	at := ""
	if e.Site != "" {
		at = " of " + e.Site
	}
	return fmt.Sprintf("%v: %s%s at [%d,%d] is %g; %s", e.Err, e.What, at, e.Row, e.Col, e.Value, e.Try)
}

// Unwrap gives the sentinel.
func (e *ValueError) Unwrap() error { return e.Err }

// Hessian is the second-moment statistic of the rows that a set of linears multiplies.
type Hessian struct {
	// N is the number of input columns.
	N int
	// H [N,N] row-major is (2/Rows)·XᵀX; only the upper triangle is read.
	H []float32
	// Rows is the number of rows behind H; NativeRows those that the model's own router sent (equal where there is no
	// router).
	Rows, NativeRows int64
	// Site names the statistic in errors and records.
	Site string
	// SHA256 is the digest of the statistic, if the caller has it; it goes into the Record.
	SHA256 string
}

// Check refuses a statistic with a wrong length, a non-finite value or a negative diagonal. The error is a *ValueError
// (or wraps ErrShape).
func (h *Hessian) Check() error {
	if h.N <= 0 || len(h.H) != h.N*h.N {
		return fmt.Errorf("%w: statistic %s has %d values for %d columns; pass [in,in]", ErrShape, h.Site, len(h.H), h.N)
	}
	if h.Rows < 0 {
		return fmt.Errorf("%w: statistic %s has %d rows", ErrShape, h.Site, h.Rows)
	}
	for i := range h.N {
		row := h.H[i*h.N+i : (i+1)*h.N]
		// x−x is 0 for finite x and NaN otherwise, so one sum shows whether the row needs a closer look.
		var probe float32
		for _, v := range row {
			probe += v - v
		}
		if probe != 0 {
			for k, v := range row {
				if v-v != 0 {
					return &ValueError{What: "H", Site: h.Site, Row: i, Col: i + k, Value: float64(v), Err: ErrNonFinite,
						Try: "look for a calibration row with a NaN, an infinity or a value above 1e19 at this site"}
				}
			}
		}
		if row[0] < 0 {
			return &ValueError{What: "H", Site: h.Site, Row: i, Col: i, Value: float64(row[0]), Err: ErrNegativeDiagonal,
				Try: "the statistic is damaged: compute it again"}
		}
	}
	return nil
}

// checkWeight refuses lengths that do not fit and non-finite weights.
func checkWeight(w []float32, out, in int, site string) error {
	if out <= 0 || in <= 0 || len(w) != out*in {
		return fmt.Errorf("%w: weight %s has %d values for [%d,%d]", ErrShape, site, len(w), out, in)
	}
	for r := range out {
		row := w[r*in : (r+1)*in]
		var probe float32
		for _, v := range row {
			probe += v - v
		}
		if probe != 0 {
			for c, v := range row {
				if v-v != 0 {
					return &ValueError{What: "W", Site: site, Row: r, Col: c, Value: float64(v), Err: ErrNonFinite,
						Try: "the source tensor holds it: leave the module out, or repair the checkpoint"}
				}
			}
		}
	}
	return nil
}

// Digest is the SHA-256 of x as little-endian float32 bytes, in hexadecimal.
func Digest(x []float32) string {
	sum := sha256.New()
	if littleEndian {
		if len(x) > 0 {
			sum.Write(unsafe.Slice((*byte)(unsafe.Pointer(&x[0])), 4*len(x)))
		}
	} else {
		var b [4]byte
		for _, v := range x {
			u := math.Float32bits(v)
			b = [4]byte{byte(u), byte(u >> 8), byte(u >> 16), byte(u >> 24)}
			sum.Write(b[:])
		}
	}
	return hex.EncodeToString(sum.Sum(nil))
}

var littleEndian = func() bool {
	x := uint16(1)
	return *(*byte)(unsafe.Pointer(&x)) == 1
}()
