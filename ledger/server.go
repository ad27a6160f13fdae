package ledger

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"sync"
	"time"
)

const socketName = "ledger.sock"

// ask is one request on the socket: a line of JSON. The answer is lines of JSON, the last of type "end" or "error".
type ask struct {
	Op      string `json:"op"` // status, head, get, at, scan, since, prove, backup
	Key     string `json:"key,omitempty"`
	Prefix  string `json:"prefix,omitempty"`
	Seq     uint64 `json:"seq,omitempty"`
	Follow  bool   `json:"follow,omitempty"`
	To      string `json:"to,omitempty"`
	Compact bool   `json:"compact,omitempty"`
}

// reply is one line of an answer.
type reply struct {
	Type    string     `json:"type"` // event, status, head, proof, end, error
	Event   *Event     `json:"event,omitempty"`
	Where   []Location `json:"where,omitempty"` // of the event's payloads
	Status  *Status    `json:"status,omitempty"`
	Head    *Head      `json:"head,omitempty"`
	Proof   *Proof     `json:"proof,omitempty"`
	Message string     `json:"message,omitempty"`
	Code    string     `json:"code,omitempty"`
	Exit    int        `json:"exit,omitempty"`
	Hint    string     `json:"hint,omitempty"`
}

// server answers questions about a running ledger on a unix socket in its directory.
type server struct {
	l       *Ledger
	ln      net.Listener
	ctx     context.Context
	cancel  context.CancelFunc
	release func()
	wg      sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]struct{}
}

func startServer(l *Ledger) (*server, error) {
	path := l.path(socketName)
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	addr, release, err := socketAddress(l.dir, socketName)
	if err != nil {
		return nil, err
	}
	ln, err := net.Listen("unix", addr)
	if err != nil {
		release()
		return nil, err
	}
	_ = os.Chmod(path, 0o600)
	s := &server{l: l, ln: ln, release: release, conns: map[net.Conn]struct{}{}}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.wg.Add(1)
	go s.accept()
	return s, nil
}

func (s *server) accept() {
	defer s.wg.Done()
	for {
		c, err := s.ln.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		if s.ctx.Err() != nil || len(s.conns) >= 32 {
			s.mu.Unlock()
			c.Close()
			continue
		}
		s.conns[c] = struct{}{}
		s.wg.Add(1)
		s.mu.Unlock()
		go s.serve(c)
	}
}

func (s *server) close() {
	s.cancel()
	_ = s.ln.Close()
	_ = os.Remove(s.l.path(socketName))
	s.mu.Lock()
	for c := range s.conns {
		c.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
	s.release()
}

func (s *server) serve(c net.Conn) {
	defer s.wg.Done()
	defer func() {
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
		c.Close()
	}()
	in := bufio.NewScanner(c)
	in.Buffer(make([]byte, 4096), 64<<10)
	out := bufio.NewWriter(c)
	enc := json.NewEncoder(out)
	for in.Scan() {
		var q ask
		err := json.Unmarshal(in.Bytes(), &q)
		if err == nil {
			err = s.answer(q, func(r reply) error {
				_ = c.SetWriteDeadline(time.Now().Add(30 * time.Second))
				if err := enc.Encode(r); err != nil {
					return err
				}
				if q.Follow || out.Buffered() > 32<<10 {
					return out.Flush()
				}
				return nil
			})
		}
		end := reply{Type: "end"}
		if err != nil {
			end = errorReply(err)
		}
		if enc.Encode(end) != nil || out.Flush() != nil {
			return
		}
	}
}

func errorReply(err error) reply {
	r := reply{Type: "error", Message: err.Error(), Code: "E1700", Exit: exitFailure}
	var c interface {
		ErrorCode() string
		ExitCode() int
		Remedy() string
	}
	if errors.As(err, &c) {
		r.Code, r.Exit, r.Hint = c.ErrorCode(), c.ExitCode(), c.Remedy()
	}
	return r
}

func (s *server) answer(q ask, send func(reply) error) error {
	event := func(e Event) error {
		r := reply{Type: "event", Event: &e}
		for _, p := range e.Payloads {
			loc, err := s.l.Locate(e, p.Role)
			if err != nil {
				return err
			}
			r.Where = append(r.Where, loc)
		}
		return send(r)
	}
	switch q.Op {
	case "status":
		st := s.l.currentStatus()
		return send(reply{Type: "status", Status: &st})
	case "head":
		h := s.l.Head()
		return send(reply{Type: "head", Head: &h})
	case "get", "at":
		var e Event
		var ok bool
		var err error
		if q.Op == "at" {
			e, err = s.l.At(q.Seq)
			ok = err == nil
		} else {
			e, ok, err = s.l.Get(q.Key)
		}
		if err != nil {
			return err
		}
		if !ok {
			return notFound("no event has the key %q", q.Key)
		}
		return event(e)
	case "scan":
		for e, err := range s.l.Scan(q.Prefix) {
			if err != nil {
				return err
			}
			if err := event(e); err != nil {
				return err
			}
		}
		return nil
	case "since":
		for at := q.Seq; ; {
			grown := s.l.grown.wait()
			for e, err := range s.l.Since(at) {
				if err != nil {
					return err
				}
				if err := event(e); err != nil {
					return err
				}
				at = e.Seq
			}
			if !q.Follow {
				return nil
			}
			select {
			case <-grown:
			case <-s.ctx.Done():
				return nil
			}
		}
	case "prove":
		p, err := s.l.Prove(q.Seq)
		if err != nil {
			return err
		}
		return send(reply{Type: "proof", Proof: &p})
	case "backup":
		return s.l.Backup(s.ctx, q.To, BackupOptions{Compact: q.Compact})
	}
	return usage("unknown request %q", q.Op)
}
