package ledger_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"quire/ledger/internal/writelog"
)

// recordVictim records what a victim writes in some stays.
func recordVictim(t testing.TB, seed uint64, stays, steps int) (*writelog.Log, error) {
	root := memoryDir(t)
	cmd := exec.Command(os.Args[0], "-test.run=NONE")
	cmd.Env = append(os.Environ(), childEnv+"="+filepath.Join(root, "run"), fmt.Sprintf("QUIRE_LEDGER_SEED=%d", seed),
		fmt.Sprintf("QUIRE_LEDGER_STAYS=%d", stays), fmt.Sprintf("QUIRE_LEDGER_STEPS=%d", steps), "GOMAXPROCS=2")
	return writelog.Record(cmd, root, 2*time.Minute)
}

// imageOf makes one crash image and looks at it as the next stay would.
func imageOf(dir string, log *writelog.Log, at int, seed uint64, rules writelog.Rules) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	r := rand.New(rand.NewPCG(seed, uint64(at)))
	if err := log.Image(dir, at, r, rules); err != nil {
		return fmt.Errorf("making the image: %w", err)
	}
	w := newWitness()
	for _, line := range strings.Split(string(log.Said(at)), "\n") {
		w.hear(line)
	}
	return w.verify(filepath.Join(dir, "run"))
}

// TestCrashImages records everything that a writing process asks of its files, and looks at what a crash of the machine
// at many instants may have left: unsynced writes torn at 512 bytes and in any order, unsynced names and sizes there or
// not.
func TestCrashImages(t *testing.T) {
	r := seed(t)
	base := r.Uint64() | 3                        // the first log is one of large transactions
	logs, images := rounds(1, 8), rounds(30, 400) // images of each log
	type work struct {
		log   *writelog.Log
		at    int
		seed  uint64
		rules writelog.Rules
	}
	var all []work
	creation := 0
	for i := range logs {
		log, err := recordVictim(t, base+uint64(i), 3, 20)
		if errors.Is(err, syscall.EPERM) && leftOut(t, fmt.Errorf("a process must be traced: %w", err)) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		instants := log.Instants()
		opened := 0
		for _, op := range log.Ops {
			if op.Kind == writelog.Say {
				opened = op.Start
				break
			}
		}
		for k := range images {
			at := instants[r.IntN(len(instants))]
			if k%8 == 0 { // creation is short beside what follows
				at = r.IntN(opened + 1)
			}
			if at < opened {
				creation++
			}
			all = append(all, work{log, at, base + uint64(k), writelog.Rules{Sector: []int64{512, 4096}[k%2], InOrder: k%3 == 0}})
		}
		t.Logf("log %d: %d operations, %d instants", i, len(log.Ops), len(instants))
	}
	var next atomic.Int64
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		dir := filepath.Join(memoryDir(t), "image")
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := int(next.Add(1)) - 1; i < len(all) && !t.Failed(); i = int(next.Add(1)) - 1 {
				if err := imageOf(dir, all[i].log, all[i].at, all[i].seed, all[i].rules); err != nil {
					t.Errorf("image %d, instant %d of %d, %+v: %v", i, all[i].at, all[i].log.End, all[i].rules, err)
					for _, op := range all[i].log.Ops {
						if op.Start <= all[i].at && op.Start > all[i].at-400 {
							t.Logf("%d-%d %s", op.Start, op.End, op)
						}
					}
				}
			}
		}()
	}
	wg.Wait()
	durable(t, "crash image from a recorded write log (unsynced writes torn at 512 B and 4 KiB and reordered, unsynced names and sizes lost)", len(all),
		"%d of %d open whole with everything acknowledged; %d of them lie inside creation", len(all), len(all), creation)
}

// TestCrashImagesHaveTeeth takes the syncs away: then images must be found broken, or the test above shows nothing.
func TestCrashImagesHaveTeeth(t *testing.T) {
	log, err := recordVictim(t, 7, 1, 25)
	if errors.Is(err, syscall.EPERM) && leftOut(t, fmt.Errorf("a process must be traced: %w", err)) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(memoryDir(t), "image")
	broken := 0
	for k := range 40 {
		if imageOf(dir, log, log.End*(k+40)/80, uint64(k), writelog.Rules{IgnoreSyncs: true}) != nil {
			broken++
		}
	}
	if broken < 20 {
		t.Fatalf("without syncs only %d of 40 images are broken", broken)
	}
}
