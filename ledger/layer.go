package ledger

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"sort"
	"sync"
	"sync/atomic"
)

// changes is where events are entered: the tables of a transaction, or a layer above ledger.db.
type changes interface {
	// put keeps v, which must not change afterwards.
	put(bucket []byte, key string, v []byte) error
}

// lookup is what events are compared with before they are entered.
type lookup interface {
	changes
	// get gives a value as the changes so far left it, nil when the key is absent; valid until the next put.
	get(bucket []byte, key string) ([]byte, error)
}

// layer is what groups of events change in the tables of ledger.db before it is there. Entries are added and replaced,
// never deleted. Whoever changes it is alone with it.
type layer struct {
	base, head Head     // before its first event, and after its newest
	envelopes  [][]byte // table ev, of event base.Seq+1 on
	tables     map[string]*layerTable
	bytes      int64 // estimated
}

type layerTable struct {
	values map[string][]byte
	keys   []string // in the order in which they came; only ever appended to
	last   string   // the greatest
	sorted atomic.Pointer[[]string]
}

func newLayer(base Head) *layer {
	return &layer{tables: make(map[string]*layerTable, 4), base: base, head: base}
}

// expect makes room for the keys of so many events.
func (y *layer) expect(events int) {
	y.envelopes = make([][]byte, 0, events)
	y.tables[string(bucketKeys)] = &layerTable{values: make(map[string][]byte, events), keys: make([]string, 0, events)}
}

func (y *layer) find(bucket []byte, key string) []byte {
	if bytes.Equal(bucket, bucketEvents) {
		if len(key) == 8 {
			if i := binary.BigEndian.Uint64([]byte(key)) - y.base.Seq - 1; i < uint64(len(y.envelopes)) {
				return y.envelopes[i]
			}
		}
		return nil
	}
	if t := y.tables[string(bucket)]; t != nil {
		return t.values[key]
	}
	return nil
}

func (y *layer) put(bucket []byte, key string, v []byte) error {
	if bytes.Equal(bucket, bucketEvents) {
		y.envelopes = append(y.envelopes, v)
		return nil
	}
	t := y.tables[string(bucket)]
	if t == nil {
		t = &layerTable{values: map[string][]byte{}}
		y.tables[string(bucket)] = t
	}
	if v == nil {
		v = []byte{} // nil would say that the key is absent
	}
	t.put(key, v)
	return nil
}

func (t *layerTable) put(k string, v []byte) {
	if _, ok := t.values[k]; !ok {
		t.keys = append(t.keys, k)
		t.last = max(t.last, k)
	}
	t.values[k] = v
}

// merge adds the changes of a newer layer.
func (y *layer) merge(newer *layer) {
	for name, t := range newer.tables {
		mine := y.tables[name]
		if mine == nil {
			y.tables[name] = t
			continue
		}
		for _, k := range t.keys {
			mine.put(k, t.values[k])
		}
	}
	y.envelopes = append(y.envelopes, newer.envelopes...)
	y.head, y.bytes = newer.head, y.bytes+newer.bytes
}

// inOrder gives keys, which the table has or had, in order.
func (t *layerTable) inOrder(keys []string) []string {
	if s := t.sorted.Load(); s != nil && len(*s) == len(keys) {
		return *s
	}
	if !slices.IsSorted(keys) {
		keys = slices.Clone(keys)
		slices.Sort(keys)
	}
	t.sorted.Store(&keys)
	return keys
}

// tail is the events that are durable in the journal and not yet known to be in ledger.db: at most two layers, the older one
// on its way there. Those who read look here first, then in ledger.db: a layer goes only once ledger.db has it.
type tail struct {
	mu     sync.RWMutex
	layers []*layer // oldest first
}

func (t *tail) find(bucket []byte, key string) []byte {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for i := len(t.layers) - 1; i >= 0; i-- {
		if v := t.layers[i].find(bucket, key); v != nil {
			return v
		}
	}
	return nil
}

// add makes a layer's events visible; it gives the layer that holds them.
func (t *tail) add(active, fresh *layer) *layer {
	t.mu.Lock()
	defer t.mu.Unlock()
	if active != nil {
		active.merge(fresh)
		return active
	}
	t.layers = append(t.layers, fresh)
	return fresh
}

// drop forgets the oldest layer.
func (t *tail) drop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.layers = slices.Delete(t.layers, 0, 1)
}

func (t *tail) empty() bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return len(t.layers) == 0
}

type tailEntry struct {
	key   string
	value []byte
}

// entries gives at most limit entries of a table from a key on, in order.
func (t *tail) entries(bucket, from []byte, limit int) []tailEntry {
	type source struct {
		table *layerTable
		keys  []string
	}
	var sources []source
	t.mu.RLock()
	if bytes.Equal(bucket, bucketEvents) {
		defer t.mu.RUnlock()
		var list []tailEntry
		for _, y := range t.layers {
			for i, v := range y.envelopes {
				if k := seqKey(y.base.Seq + 1 + uint64(i)); len(list) < limit && bytes.Compare(k, from) >= 0 {
					list = append(list, tailEntry{string(k), v})
				}
			}
		}
		return list
	}
	for _, y := range t.layers {
		if table := y.tables[string(bucket)]; table != nil {
			sources = append(sources, source{table, table.keys})
		}
	}
	t.mu.RUnlock()
	if len(sources) == 0 {
		return nil
	}
	var keys []string
	for _, s := range sources {
		sorted := s.table.inOrder(s.keys)
		i := sort.SearchStrings(sorted, string(from))
		keys = append(keys, sorted[i:min(len(sorted), i+limit)]...)
	}
	slices.Sort(keys)
	keys = slices.Compact(keys)
	list := make([]tailEntry, 0, min(len(keys), limit))
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, k := range keys[:min(len(keys), limit)] {
		for i := len(sources) - 1; i >= 0; i-- {
			if v := sources[i].table.values[k]; v != nil {
				list = append(list, tailEntry{k, v})
				break
			}
		}
	}
	return list
}

// last gives the greatest key of a table and its value.
func (t *tail) last(bucket []byte) (k, v []byte) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, y := range t.layers {
		if n := len(y.envelopes); n > 0 && bytes.Equal(bucket, bucketEvents) {
			k, v = seqKey(y.base.Seq+uint64(n)), y.envelopes[n-1]
		}
		if table := y.tables[string(bucket)]; table != nil && len(table.keys) > 0 {
			if k == nil || table.last >= string(k) {
				k, v = []byte(table.last), table.values[table.last]
			}
		}
	}
	return k, v
}

// layeredStore reads ledger.db with the events that are not in it yet.
type layeredStore struct {
	store
	tail *tail
}

func (s layeredStore) get(bucket, key []byte) ([]byte, error) {
	if v := s.tail.find(bucket, string(key)); v != nil {
		return bytes.Clone(v), nil
	}
	return s.store.get(bucket, key)
}

func (s layeredStore) scan(bucket, from []byte, limit int, fn func(k, v []byte) error) (more bool, err error) {
	if s.tail.empty() {
		return s.store.scan(bucket, from, limit, fn)
	}
	over := s.tail.entries(bucket, from, limit+1)
	ended := false // by fn, or by the limit
	emit := func(k, v []byte) error {
		if limit == 0 {
			more, ended = true, true
			return errStop
		}
		limit--
		err := fn(k, v)
		ended = errors.Is(err, errStop)
		return err
	}
	_, err = s.store.scan(bucket, from, limit+1, func(k, v []byte) error {
		for len(over) > 0 && over[0].key < string(k) {
			if err := emit([]byte(over[0].key), over[0].value); err != nil {
				return err
			}
			over = over[1:]
		}
		if len(over) > 0 && over[0].key == string(k) {
			v, over = over[0].value, over[1:]
		}
		return emit(k, v)
	})
	for err == nil && !ended && len(over) > 0 {
		err = emit([]byte(over[0].key), over[0].value)
		over = over[1:]
	}
	if errors.Is(err, errStop) {
		err = nil
	}
	return more, err
}

func (s layeredStore) last(bucket []byte) (k, v []byte, err error) {
	k, v = s.tail.last(bucket)
	uk, uv, err := s.store.last(bucket)
	if err != nil || k == nil || bytes.Compare(uk, k) > 0 {
		return uk, uv, err
	}
	return k, bytes.Clone(v), nil
}
