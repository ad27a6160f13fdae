package format

// intQuantized is the int-quantized layout of compressed-tensors as used for W8A8: unpacked int8 weights with one scale
// a row, activations quantized per token at run time. Readers also take one scale for the whole tensor.
type intQuantized struct{}

func (intQuantized) Name() string { return "compressed-tensors-w8a8" }

func (intQuantized) Suffixes() []string {
	return []string{"weight", "weight_scale", "weight_zero_point"}
}

func (intQuantized) StoredScale(d DType) DType { return storedOrBF16(d) }

func (intQuantized) Check(m *Module, natural bool) error {
	if err := m.checkShape(); err != nil {
		return err
	}
	switch {
	case m.Bits != 8:
		return m.errorf("E1502", "use 8 bits, or compressed-tensors", "int-quantized holds 8 bits, not %d", m.Bits)
	case m.GroupSize > 0 && m.GroupSize < m.In:
		return m.errorf("E1503", "use group size -1", "W8A8 has one scale a row, not groups of %d", m.GroupSize)
	case !natural:
		return m.errorf("E1510", "turn desc_act off", "int-quantized has no g_idx")
	}
	return nil
}

func (f intQuantized) Plan(m *Module) ([]TensorSpec, error) {
	if err := f.Check(m, m.NaturalGIdx()); err != nil {
		return nil, err
	}
	specs := m.planBias(nil)
	specs = append(specs,
		TensorSpec{m.Name + ".weight", I8, []int{m.Out, m.In}},
		TensorSpec{m.Name + ".weight_scale", f.StoredScale(m.ScaleDType), []int{m.Out, 1}})
	if !m.Sym {
		specs = append(specs, TensorSpec{m.Name + ".weight_zero_point", I8, []int{m.Out, 1}})
	}
	return specs, nil
}

func (f intQuantized) Encode(m *Module) ([]TensorData, error) {
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
	data := map[string][]byte{"weight": flipSign(m.Codes), "weight_scale": scales}
	if !m.Sym {
		data["weight_zero_point"] = flipSign(m.zerosByGroup(0))
	}
	return m.assemble(specs, data), nil
}

// flipSign turns code into code−128 and back: both are the top bit.
func flipSign(src []uint8) []uint8 {
	dst := make([]uint8, len(src))
	for i, v := range src {
		dst[i] = v ^ 0x80
	}
	return dst
}

func (f intQuantized) Decode(name string, s Scheme, tensors []TensorData) (*Module, error) {
	p := splitParts(name, tensors)
	m := &Module{Name: name, Bits: s.Bits, GroupSize: s.GroupSize, Sym: s.Sym, Bias: p.bias()}
	w, err := p.get("weight", []int{-1, -1}, I8)
	if err != nil {
		return nil, err
	}
	m.Out, m.In = w.Shape[0], w.Shape[1]
	if err := f.Check(m, true); err != nil {
		return nil, err
	}
	scales, perTensor, err := p.channelOrTensor("weight_scale", m.Out, BF16, F16, F32)
	if err != nil {
		return nil, err
	}
	m.ScaleDType = scales.DType
	if perTensor {
		one := decodeScales(scales, 1, 1, false)[0]
		m.Scales = make([]float32, m.Out)
		for i := range m.Scales {
			m.Scales[i] = one
		}
	} else {
		m.Scales = decodeScales(scales, m.Out, 1, false)
	}
	m.Codes = flipSign(w.Data)
	if _, ok := p.by["weight_zero_point"]; ok || !m.Sym {
		zp, perTensor, err := p.channelOrTensor("weight_zero_point", m.Out, I8)
		if err != nil {
			return nil, err
		}
		zeros := flipSign(zp.Data)
		for perTensor && len(zeros) < m.Out {
			zeros = append(zeros, zeros[0])
		}
		m.setZeros(zeros)
	}
	return m, nil
}

// channelOrTensor reads a tensor of shape [out, 1], or [1] for the whole tensor.
func (p parts) channelOrTensor(suffix string, out int, dts ...DType) (TensorData, bool, error) {
	if t, ok := p.by[suffix]; ok && len(t.Shape) == 1 {
		t, err := p.get(suffix, []int{1}, dts...)
		return t, true, err
	}
	t, err := p.get(suffix, []int{out, 1}, dts...)
	return t, false, err
}
