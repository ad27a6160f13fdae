//go:build unix

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/rogpeppe/go-internal/testscript"
	"github.com/stretchr/testify/require"

	"quire/capture/checkpoint"
	"quire/engine"
	"quire/ledger"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"quire": main})
}

// TestScripts runs testdata/script/*.txtar. Their words beside testscript's own:
//
//	exits CODE quire ARGS…           run, and compare the exit code
//	ndjson                           the last stdout is a stream: hello first, result or error (with the exit code) last
//	sent SIGNALS CODE quire ARGS…    run with --progress json, send the signals (TERM, INT or TERM,TERM) once layer 0 is in work
//	hold RUN / release RUN           write the ledger from another process than the commands'
//	live RUN                         wait until another process writes the ledger
//	flip FILE TENSOR BYTE            flip a bit of a tensor's byte
//	flip FILE                        flip a bit in the middle of a file's densest part: payload rather than structure
//	poke FILE TENSOR BYTE HEX        overwrite bytes of a tensor
//
// $MODEL, $TOKENS and $VALID are the embedded model and its token files, $LAYER is a weight with its rows, $ONE a rule that leaves all
// layers but the first alone.
func TestScripts(t *testing.T) {
	dir := bed(t)
	layer, err := filepath.Abs(filepath.Join("..", "..", "testdata", "quant", "gptq"))
	require.NoError(t, err)
	commands := map[string]func(*testscript.TestScript, bool, []string){
		"exits": func(ts *testscript.TestScript, _ bool, args []string) {
			want, err := strconv.Atoi(args[0])
			ts.Check(err)
			err = ts.Exec(args[1], args[2:]...)
			setExit(ts, exitOf(err))
			if got := exitOf(err); got != want {
				ts.Fatalf("exit code %d, not %d", got, want)
			}
		},
		"ndjson": func(ts *testscript.TestScript, _ bool, _ []string) {
			ts.Check(checkStream(ts.ReadFile("stdout"), getExit(ts)))
		},
		"sent": func(ts *testscript.TestScript, _ bool, args []string) { ts.Check(signalled(ts, args)) },
		"live": func(ts *testscript.TestScript, _ bool, args []string) {
			for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
				if st, err := ledger.ReadStatus(context.Background(), ts.MkAbs(args[0])); err == nil && st.Live {
					return
				}
				if time.Now().After(deadline) {
					ts.Fatalf("nobody writes %s", args[0])
				}
			}
		},
		"hold": func(ts *testscript.TestScript, _ bool, args []string) {
			l, err := ledger.Open(context.Background(), ts.MkAbs(args[0]), ledger.Options{})
			ts.Check(err)
			held(ts)[args[0]] = l
		},
		"release": func(ts *testscript.TestScript, _ bool, args []string) {
			ts.Check(held(ts)[args[0]].Close(context.Background(), "released"))
			delete(held(ts), args[0])
		},
		"flip": func(ts *testscript.TestScript, _ bool, args []string) { ts.Check(flip(ts, args)) },
		"poke": func(ts *testscript.TestScript, _ bool, args []string) {
			at, err := strconv.ParseInt(args[2], 10, 64)
			ts.Check(err)
			b, err := hex.DecodeString(args[3])
			ts.Check(err)
			ts.Check(overwrite(ts.MkAbs(args[0]), args[1], at, func(old []byte) { copy(old, b) }, len(b)))
		},
	}
	testscript.Run(t, testscript.Params{Dir: filepath.Join("testdata", "script"), Cmds: commands, Setup: func(e *testscript.Env) error {
		e.Setenv("MODEL", filepath.Join(dir, "demo"))
		e.Setenv("TOKENS", filepath.Join(dir, "tokens", "self_generated512.u16"))
		e.Setenv("VALID", filepath.Join(dir, "tokens", "ts_valid512.u16"))
		e.Setenv("LAYER", filepath.Join(layer, "layer-small.safetensors"))
		e.Setenv("ONE", `--dynamic=-:layers\.[123]\.`)
		e.Values["state"] = &scriptState{ledgers: map[string]*ledger.Ledger{}}
		return nil
	}})
}

// scriptState is what one script's commands remember.
type scriptState struct {
	exit    int
	ledgers map[string]*ledger.Ledger
}

func stateOfScript(ts *testscript.TestScript) *scriptState { return ts.Value("state").(*scriptState) }
func setExit(ts *testscript.TestScript, code int)          { stateOfScript(ts).exit = code }
func getExit(ts *testscript.TestScript) int                { return stateOfScript(ts).exit }
func held(ts *testscript.TestScript) map[string]*ledger.Ledger {
	return stateOfScript(ts).ledgers
}

// exitOf is the exit code as a shell tells it.
func exitOf(err error) int {
	var ee *exec.ExitError
	if !errors.As(err, &ee) {
		if err != nil {
			return -1
		}
		return 0
	}
	if w, ok := ee.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		return 128 + int(w.Signal())
	}
	return ee.ExitCode()
}

// checkStream holds an NDJSON stream to the rules of the command line.
func checkStream(stdout string, exit int) error {
	lines := strings.Split(strings.TrimSuffix(stdout, "\n"), "\n")
	var all []map[string]any
	for i, l := range lines {
		var m map[string]any
		if err := json.Unmarshal([]byte(l), &m); err != nil {
			return fmt.Errorf("line %d is no JSON object: %w: %s", i+1, err, l)
		}
		all = append(all, m)
	}
	first, last := all[0], all[len(all)-1]
	if first["type"] != "hello" || first["schema"] != "1.0" || first["version"] == nil {
		return fmt.Errorf("the first line is no hello: %s", lines[0])
	}
	for i, m := range all[1:] {
		if m["type"] == "hello" {
			return fmt.Errorf("line %d says hello again", i+2)
		}
	}
	switch last["type"] {
	case "result":
		if code, ok := last["exit"].(float64); exit != 0 && (!ok || int(code) != exit) {
			return fmt.Errorf("exit code %d, but the stream ends with %s", exit, lines[len(lines)-1])
		}
	case "error":
		if last["exit"] != float64(exit) || last["message"] == "" || last["hint"] == "" || !regexp.MustCompile(`^E\d{4}$`).MatchString(fmt.Sprint(last["code"])) {
			return fmt.Errorf("exit code %d; an error needs code, exit, message and hint: %s", exit, lines[len(lines)-1])
		}
		if _, known := catalogue()[last["code"].(string)]; !known {
			return fmt.Errorf("quire explain does not know %s", last["code"])
		}
	default:
		return fmt.Errorf("the last line is neither result nor error: %s", lines[len(lines)-1])
	}
	return nil
}

// signalled runs a command that reports progress as JSON and sends it signals once its first layer is in work.
func signalled(ts *testscript.TestScript, args []string) error {
	want, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	exe, err := exec.LookPath(args[2])
	if err != nil {
		return err
	}
	cmd := exec.Command(exe, args[3:]...)
	cmd.Dir = ts.Getenv("WORK")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	var said strings.Builder
	told := false
	signals := map[string]os.Signal{"TERM": syscall.SIGTERM, "INT": syscall.SIGINT}
	gone := make(chan struct{})
	var again sync.WaitGroup
	sc := bufio.NewScanner(out)
	for sc.Scan() {
		fmt.Fprintln(&said, sc.Text())
		if !told && strings.Contains(sc.Text(), `"kind":"stage"`) {
			told = true
			first, second, _ := strings.Cut(args[0], ",")
			if err := cmd.Process.Signal(signals[first]); err != nil {
				return err
			}
			if second != "" {
				again.Go(func() {
					for { // until the one that comes after the first was heard
						select {
						case <-gone:
							return
						case <-time.After(10 * time.Millisecond):
							_ = cmd.Process.Signal(signals[second]) // it may be gone
						}
					}
				})
			}
		}
	}
	close(gone)
	again.Wait()
	got := exitOf(cmd.Wait())
	setExit(ts, got)
	if !told || got != want {
		return fmt.Errorf("exit code %d, not %d (in work: %v)\n%s%s", got, want, told, said.String(), stderr.String())
	}
	return nil
}

// overwrite changes n bytes of a tensor in place.
func overwrite(file, tensor string, at int64, change func([]byte), n int) error {
	sh, err := checkpoint.OpenShard(file)
	if err != nil {
		return err
	}
	var start int64 = -1
	for _, t := range sh.Tensors() {
		if t.Name == tensor {
			start = t.Begin
		}
	}
	if err := sh.Close(); err != nil {
		return err
	}
	if start < 0 {
		return fmt.Errorf("%s has no tensor %s", file, tensor)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	start += 8 + int64(binary.LittleEndian.Uint64(b)) + at // behind the header
	change(b[start : start+int64(n)])
	return os.WriteFile(file, b, 0o644)
}

// flip flips one bit of a file.
func flip(ts *testscript.TestScript, args []string) error {
	files, err := filepath.Glob(ts.MkAbs(args[0]))
	if err != nil || len(files) == 0 {
		return errors.Join(err, fmt.Errorf("no file %s", args[0]))
	}
	if len(args) == 3 {
		at, err := strconv.ParseInt(args[2], 10, 64)
		if err != nil {
			return err
		}
		return overwrite(files[0], args[1], at, func(b []byte) { b[0] ^= 1 }, 1)
	}
	b, err := os.ReadFile(files[0])
	if err != nil {
		return err
	}
	best, most := 0, 0
	for i := 0; i+256 <= len(b); i += 256 {
		seen := map[byte]bool{}
		for _, c := range b[i : i+256] {
			seen[c] = true
		}
		if len(seen) > most {
			best, most = i, len(seen)
		}
	}
	b[best+128] ^= 1
	return os.WriteFile(files[0], b, 0o644)
}

// TestScriptsCoverTheCommandLine: every verb, every exit code of the README's table, and the --json stream of every verb that has one
// occur in the scripts.
func TestScriptsCoverTheCommandLine(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join("testdata", "script", "*.txtar"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	ran, streamed, codes := map[string]bool{}, map[string]bool{}, map[string]bool{}
	call := regexp.MustCompile(`^(?:exec|(?:exits|sent \S+) (\d+)) quire (\S+)(?: (\S+))?(.*)$`)
	for _, f := range files {
		b, err := os.ReadFile(f)
		require.NoError(t, err)
		last := ""
		for _, line := range strings.Split(string(b), "\n") {
			if m := call.FindStringSubmatch(line); m != nil {
				verb := m[2]
				if verb == "ledger" {
					verb += " " + m[3]
				}
				if m[1] == "" {
					m[1] = "0"
				}
				ran[verb], codes[m[1]] = true, true
				if last = ""; strings.Contains(line, " --json") {
					last = verb
				}
			}
			if line == "ndjson" && last != "" {
				streamed[last] = true
			}
		}
	}
	parser, err := kong.New(&cli{}, kong.Name("quire"))
	require.NoError(t, err)
	for _, leaf := range parser.Model.Leaves(false) {
		verb := strings.TrimPrefix(leaf.Path(), "quire ")
		require.True(t, ran[verb], "no script runs %q", verb)
		for _, fl := range leaf.Flags {
			// Where one line of input gives one line of output, and where the output is one document, --json changes nothing.
			if fl.Name == "json" && fl.Target.Kind() == reflect.Bool && !strings.Contains(fl.Help, "always") {
				require.True(t, streamed[verb], "no script checks the stream of %q --json", verb)
			}
		}
	}
	for _, code := range []int{engine.ExitOK, engine.ExitFailure, engine.ExitFindings, engine.ExitMismatch, engine.ExitDiverged, engine.ExitNonFinite, engine.ExitNoRun, engine.ExitLocked,
		engine.ExitLedgerDamaged, engine.ExitIdentity, engine.ExitMemoryShort, engine.ExitDiskShort, engine.ExitUsage, engine.ExitStoppedDurably, 130, 143} {
		require.True(t, codes[strconv.Itoa(code)], "no script ends with exit code %d", code)
	}
}
