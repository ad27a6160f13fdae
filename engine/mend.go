package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"quire/capture/model"
	"quire/ledger"
)

// mender is a store that gives damaged payloads back. Reading one fails and is remembered. Whoever needs the payload and
// can derive it does the work again; when the event that names it comes to be appended a second time, with the same
// content, its bytes are stored anew and a `rebuilt` event says so. An event with another content is a divergence, as
// ever: nothing is replaced by something else.
type mender struct {
	Store
	told func(string)

	mu      sync.Mutex
	damaged map[string][]string // roles by event key
}

// restorer is a store that can give an event its payload back.
type restorer interface {
	Restore(ctx context.Context, key, role string, ref ledger.PayloadRef) error
}

// derivable lists the keys of events whose payloads come from sources, batches and the layer before.
var derivable = []string{"capture/", "partial/", "hessian/", "decision/", "batch/"}

func (m *mender) ReadPayload(ctx context.Context, e ledger.Event, role string) ([]byte, error) {
	b, err := m.Store.ReadPayload(ctx, e, role)
	if err != nil && errors.Is(err, ledger.ErrDamaged) && slices.ContainsFunc(derivable, func(p string) bool { return strings.HasPrefix(e.Key, p) }) {
		m.note(e.Key, role, err)
	}
	return b, err
}

// note remembers that a payload is to be stored anew.
func (m *mender) note(key, role string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.damaged == nil {
		m.damaged = map[string][]string{}
	}
	if !slices.Contains(m.damaged[key], role) {
		m.damaged[key] = append(m.damaged[key], role)
		m.told(fmt.Sprintf("deriving again what is damaged: %v", err))
	}
}

// roles gives what is damaged of an event, and takes it off the list.
func (m *mender) roles(key string) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.damaged[key]
	delete(m.damaged, key)
	return r
}

func (m *mender) Append(ctx context.Context, e ledger.Event) *ledger.Future {
	roles := m.roles(e.Key)
	fut := m.Store.Append(ctx, e)
	if len(roles) == 0 {
		return fut
	}
	stored, err := fut.All(ctx) // the event as it was, or a divergence
	if err != nil {
		return ledger.Answered(nil, err)
	}
	for _, role := range roles {
		p, ok := e.Payload(role)
		to, can := m.Store.(restorer)
		if !ok || p.Ref == nil || !can {
			continue // known by its digest only from now on
		}
		if err := to.Restore(ctx, e.Key, role, *p.Ref); err != nil {
			return ledger.Answered(nil, fmt.Errorf("%s of %s cannot be stored anew: %w", role, e.Key, err))
		}
		m.told(fmt.Sprintf("rebuilt %s of %s", role, e.Key))
	}
	return ledger.Answered(stored, nil)
}

// mayDerive says whether an error of reading a payload leaves the way of computing it again: it was let go, or it is
// damaged. What is computed must have the digest on record either way.
func mayDerive(err error) bool {
	return errors.Is(err, ledger.ErrRetired) || errors.Is(err, ledger.ErrElsewhere) || errors.Is(err, ledger.ErrDamaged)
}

// damagedInput says whether an error is about a captured input of a layer that is damaged.
func damagedInput(err error, l int) bool {
	var d *ledger.DamageError
	return errors.As(err, &d) && strings.HasPrefix(d.Key, fmt.Sprintf("capture/q/%s/input/", layerName(l)))
}

// rebuildInput derives the input of a layer whose capture is damaged, and stores what is damaged of it anew. Where the
// way back to a sound capture or to the embedding is closed too, the error that led here stands.
func (rs *runState) rebuildInput(ctx context.Context, runner *model.Runner, l int, damage error) (*hiddenStates, error) {
	if err := rs.lettingGo.wait(); err != nil { // no capture goes while others are looked for
		return nil, err
	}
	for b := range rs.batches { // find out about all of them before the layer is run for the first
		e, ok, err := rs.store.Get(keyLayerInput(l, b))
		if err != nil {
			return nil, err
		}
		if ok {
			if _, err := rs.store.ReadPayload(ctx, e, "rows"); err != nil && !mayDerive(err) {
				return nil, err
			}
		}
	}
	hidden, err := rs.layerInputBefore(ctx, runner, l)
	if err != nil {
		return nil, fmt.Errorf("%w; it cannot be derived again: %w", damage, err)
	}
	return hidden, nil
}

// layerInputBefore derives a layer's input from the nearest earlier layer whose input is sound.
func (rs *runState) layerInputBefore(ctx context.Context, runner *model.Runner, l int) (*hiddenStates, error) {
	from := l - 1
	for ; from > 0; from-- {
		sound := true
		for b := range rs.batches {
			e, ok, err := rs.store.Get(keyLayerInput(from, b))
			if err != nil {
				return nil, err
			}
			if ok {
				_, err = rs.store.ReadPayload(ctx, e, "rows")
			}
			if err != nil && !mayDerive(err) {
				return nil, err
			}
			if sound = sound && ok && err == nil; !sound {
				break
			}
		}
		if sound {
			break
		}
	}
	return rs.derive(ctx, runner, from, l)
}

// unsound lists the decided modules of a layer of which a payload is damaged: they are decided again.
func (rs *runState) unsound(ctx context.Context, l int) (map[string]bool, error) {
	var out map[string]bool
	for i := range rs.plan.Advice.Modules {
		m := &rs.plan.Advice.Modules[i]
		if m.Layer != l || m.Scheme == nil {
			continue
		}
		e, ok, err := rs.store.Get(keyDecision(l, m.Module))
		if err != nil {
			return nil, err
		}
		if !ok {
			continue
		}
		for _, p := range e.Payloads {
			if _, err := rs.store.ReadPayload(ctx, e, p.Role); errors.Is(err, ledger.ErrDamaged) {
				if out == nil {
					out = map[string]bool{}
				}
				out[m.Module] = true
			} else if err != nil && !mayDerive(err) {
				return nil, err
			}
		}
	}
	return out, nil
}
