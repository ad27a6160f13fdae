package ledger

type server struct{}

func startServer(*Ledger) (*server, error) { return nil, nil }
func (*server) close()                     {}
