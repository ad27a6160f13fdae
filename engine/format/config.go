package format

func (packQuantized) Config(s *Summary) (*Config, error) { return &Config{}, nil }
func (intQuantized) Config(s *Summary) (*Config, error)  { return &Config{}, nil }
func (gptq) Config(s *Summary) (*Config, error)          { return &Config{}, nil }
func (awqGEMM) Config(s *Summary) (*Config, error)       { return &Config{}, nil }
