// Package dtype converts between float32 and the number formats of published
// checkpoints, one value or many at a time.
//
// # Promises
//
// Decoding is exact for every code. Encoding rounds to nearest, ties to even,
// once, straight from float32. Bulk versions give the bits of the scalar ones.
//
//	format  bits s/e/m  largest    Inf   NaN codes        above the largest      NaN encodes to
//	bf16    1/8/7       3.39e38    yes   e=255, m≠0       ±Inf                   quiet, sign and upper payload kept
//	f16     1/5/10      65504      yes   e=31, m≠0        ±Inf                   quiet, sign and upper payload kept
//	e4m3    1/4/3 "fn"  448        no    0x7f, 0xff       ±448 (Inf too)         0x7f with the sign
//	e5m2    1/5/2       57344      yes   e=31, m≠0        ±Inf                   0x7f with the sign
//	e2m1    1/2/1       6          no    none             ±6 (Inf too)           +6 (code 7)
//	e8m0    0/8/0       2^127      no    255              2^127                  255, as do Inf and negatives
//
// The sign of zero is kept. Libraries that clear it (fixtures/quant, section 3)
// do so before the cast. e8m0 rounds to the nearest power of two, a tie
// (1.5·2^e) up; zero and everything below 2^-127 give code 0.
//
// # Not promised
//
// Detection of overflow: who must know compares before encoding.
package dtype
