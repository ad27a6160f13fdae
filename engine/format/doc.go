// Package format turns integer codes, scales and zero points into the tensors of published checkpoint formats, and back.
//
// Promises. Encode writes exactly the codes, scales and zeros it is given: nothing is derived again from rounded
// weights. Every code is checked against the grid, every scale is finite and above zero after the cast to the stored
// dtype, a zero point that a format cannot say is refused. Plan gives names, dtypes and shapes from the dimensions
// alone and Encode keeps to it. Decode(Encode(m)) = m. Config states what was written, in the spelling of the loaders
// that read it, and derives every exclusion from the modules that were really left alone.
//
// Not promised: files, shards, indexes (package checkpoint), the choice of codes (package quant), float formats.
//
// # Words
//
//	code    unsigned integer 0..2^bits−1, the same number in every format: w = scale·(code − zero)
//	zero    true zero point on the same axis; symmetric grids have 2^(bits−1)
//	group   the columns that share scale and zero; GroupSize −1 is a whole row, G groups a row
//	g_idx   group number of each column, stored only where it is not the natural column/GroupSize
//	scheme  bits, group size, symmetry
//
// # Layouts
//
// All of them are runs of a little-endian bit stream: element k of a line occupies bits [k·b, k·b+b). What differs is
// which axis is the line, where lines are cut, and what offset is stored.
//
//	compressed-tensors, pack-quantized (reference/modelopt_llmcompressor.md 2.8)
//	  weight_packed      I32 [out, ⌈in·b/32⌉]   line = input axis, one row padded to whole words; field = code
//	  weight_scale       F32|F16|BF16 [out, G]
//	  weight_zero_point  I32 [⌈out·b/32⌉, G]    asymmetric only; line = output axis; field = zero
//	  weight_shape       I64 [2] = out, in
//	  weight_g_idx       I32 [in]               read, never written
//
//	  4 bits:  word 0 of a row
//	  31    28 27    24 23    20 19    16 15    12 11     8 7      4 3      0
//	 +--------+--------+--------+--------+--------+--------+--------+--------+
//	 | in 7   | in 6   | in 5   | in 4   | in 3   | in 2   | in 1   | in 0   |
//	 +--------+--------+--------+--------+--------+--------+--------+--------+
//
//	compressed-tensors, int-quantized
//	  weight             I8 [out, in]           code − 128
//	  weight_scale       F32|F16|BF16 [out, 1]
//	  weight_zero_point  I8 [out, 1]            asymmetric only; zero − 128
//
//	gptq, gptq_v2 (reference/gptqmodel.md 5.1)
//	  qweight            I32 [in·b/32, out]     line = input axis, one column of words an output
//	  qzeros             I32 [G, out·b/32]      line = output axis; v1 stores zero − 1, v2 zero
//	  scales             F16 [G, out]
//	  g_idx              I32 [in]
//	  bias               as given
//
//	awq gemm (reference/gptqmodel.md 5.2)
//	  qweight            I32 [in, out/8]        nibble i of word c = output 8c + {0,2,4,6,1,3,5,7}[i]
//	  qzeros             I32 [G, out/8]         same interleave, no offset
//	  scales             F16|BF16 [G, out]
//
// A format is one file and one line of the table in table.go; the conformance suite runs over the table.
package format
