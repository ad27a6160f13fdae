package format

import "encoding/binary"

// packQuantized is the pack-quantized layout of compressed-tensors: codes along the input axis, zeros along the output
// axis, both with the offset 2^(bits−1) that makes its signed numbers the unsigned codes used here.
type packQuantized struct{}

func (packQuantized) Name() string { return "compressed-tensors" }

func (packQuantized) Suffixes() []string {
	return []string{"weight_packed", "weight_scale", "weight_shape", "weight_zero_point", "weight_g_idx"}
}

func (packQuantized) StoredScale(d DType) DType { return storedOrBF16(d) }

func storedOrBF16(d DType) DType {
	if d == "" {
		return BF16
	}
	return d
}

func (packQuantized) Check(m *Module, natural bool) error {
	if err := m.checkShape(); err != nil {
		return err
	}
	if m.GroupSize > 0 && m.In%m.GroupSize != 0 {
		return m.errorf("E1503", "choose a group size that divides the width, or leave the module out", "group size %d does not divide %d inputs", m.GroupSize, m.In)
	}
	if !natural {
		return m.errorf("E1510", "use gptq_v2 for desc_act, or act_group_aware", "compressed-tensors is written without g_idx")
	}
	return nil
}

func (f packQuantized) Plan(m *Module) ([]TensorSpec, error) {
	if err := f.Check(m, m.NaturalGIdx()); err != nil {
		return nil, err
	}
	g := m.Groups()
	specs := m.planBias(nil)
	specs = append(specs,
		TensorSpec{m.Name + ".weight_packed", I32, []int{m.Out, streamBytes(m.In, m.Bits) / 4}},
		TensorSpec{m.Name + ".weight_scale", f.StoredScale(m.ScaleDType), []int{m.Out, g}},
		TensorSpec{m.Name + ".weight_shape", I64, []int{2}})
	if !m.Sym {
		specs = append(specs, TensorSpec{m.Name + ".weight_zero_point", I32, []int{streamBytes(m.Out, m.Bits) / 4, g}})
	}
	return specs, nil
}

func (f packQuantized) Encode(m *Module) ([]TensorData, error) {
	specs, err := f.Plan(m)
	if err != nil {
		return nil, err
	}
	if err := m.checkContent(); err != nil {
		return nil, err
	}
	scales, err := m.encodeScales(f.StoredScale(m.ScaleDType), false)
	if err != nil {
		return nil, err
	}
	b, line := uint(m.Bits), streamBytes(m.In, m.Bits)
	packed, seen := make([]byte, m.Out*line), uint8(0)
	for o := range m.Out {
		seen |= packStream(packed[o*line:][:line], m.Codes[o*m.In:][:m.In], b)
	}
	if int(seen) > m.MaxQ() {
		return nil, m.badCode()
	}
	shape := make([]byte, 16)
	binary.LittleEndian.PutUint64(shape, uint64(m.Out))
	binary.LittleEndian.PutUint64(shape[8:], uint64(m.In))
	data := map[string][]byte{"weight_packed": packed, "weight_scale": scales, "weight_shape": shape}
	if !m.Sym {
		g, zeros := m.Groups(), m.zerosByGroup(0)
		words := streamBytes(m.Out, m.Bits) / 4
		zp, column := make([]byte, words*g*4), make([]byte, words*4)
		for k := range g {
			packStream(column, zeros[k*m.Out:][:m.Out], b)
			for w := range words {
				copy(zp[(w*g+k)*4:][:4], column[w*4:])
			}
		}
		data["weight_zero_point"] = zp
	}
	return m.assemble(specs, data), nil
}

func (f packQuantized) Decode(name string, s Scheme, tensors []TensorData) (*Module, error) {
	p := splitParts(name, tensors)
	m := &Module{Name: name, Bits: s.Bits, GroupSize: s.GroupSize, Sym: s.Sym, Bias: p.bias()}
	shape, err := p.get("weight_shape", []int{2}, I64, I32)
	if err != nil {
		return nil, err
	}
	var dims [2]int64
	for i := range dims {
		if shape.DType == I64 {
			dims[i] = int64(binary.LittleEndian.Uint64(shape.Data[8*i:]))
		} else {
			dims[i] = int64(int32(binary.LittleEndian.Uint32(shape.Data[4*i:])))
		}
		if dims[i] < 0 || dims[i] > 1<<31 {
			return nil, m.errorf("E1512", "fetch the file again", "weight_shape says %d", dims[i])
		}
	}
	m.Out, m.In = int(dims[0]), int(dims[1])
	if err := m.checkShape(); err != nil {
		return nil, err
	}
	g, line := m.Groups(), streamBytes(m.In, m.Bits)
	packed, err := p.get("weight_packed", []int{m.Out, line / 4}, I32)
	if err != nil {
		return nil, err
	}
	scales, err := p.get("weight_scale", []int{m.Out, g}, BF16, F16, F32)
	if err != nil {
		return nil, err
	}
	m.ScaleDType, m.Scales = scales.DType, decodeScales(scales, m.Out, g, false)
	if _, ok := p.by["weight_g_idx"]; ok {
		t, err := p.get("weight_g_idx", []int{m.In}, I32)
		if err != nil {
			return nil, err
		}
		gIdx := getInt32s(t.Data)
		for i, k := range gIdx {
			if k < 0 || int(k) >= g {
				return nil, m.errorf("E1512", "fetch the file again", "weight_g_idx of column %d is %d, there are %d groups", i, k, g)
			}
		}
		if !NaturalGIdx(gIdx, m.GroupSize) {
			m.GIdx = gIdx
		}
	}
	m.Codes = make([]uint8, m.Out*m.In)
	for o := range m.Out {
		unpackStream(m.Codes[o*m.In:][:m.In], packed.Data[o*line:][:line], uint(m.Bits))
	}
	if _, ok := p.by["weight_zero_point"]; ok || !m.Sym {
		words := streamBytes(m.Out, m.Bits) / 4
		zp, err := p.get("weight_zero_point", []int{words, g}, I32)
		if err != nil {
			return nil, err
		}
		zeros, column := make([]uint8, g*m.Out), make([]byte, words*4)
		for k := range g {
			for w := range words {
				copy(column[w*4:][:4], zp.Data[(w*g+k)*4:])
			}
			unpackStream(zeros[k*m.Out:][:m.Out], column, uint(m.Bits))
		}
		m.setZeros(zeros)
	}
	return m, nil
}
