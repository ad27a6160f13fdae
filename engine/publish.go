package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"sort"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"quire/capture/checkpoint"
	"quire/engine/format"
	"quire/kernels"
	"quire/ledger"
	"quire/resume"
)

// publish writes what stands beside the shards, seals, and renames OUT.partial to OUT. Each step is skipped if it is
// done, so it can be repeated from any state a crash leaves.
func (rs *runState) publish(ctx context.Context) error {
	if _, done, err := rs.store.Get(keyFinished()); err != nil || done {
		return err
	}
	rs.observe(Progress{Kind: "publish", Message: "writing config, index and side files"})
	sealed, err := rs.seal(ctx)
	if err != nil {
		return err
	}
	if rs.out.partial != rs.out.final {
		if err := os.Rename(rs.out.partial, rs.out.final); err != nil {
			return &Error{Code: "E0802", Exit: ExitFailure, What: "the output cannot be put in its place", Where: rs.out.final, Err: err, Try: "mend the cause and resume: everything is written"}
		}
		if err := checkpoint.SyncDir(filepath.Dir(rs.out.final)); err != nil {
			return err
		}
		rs.out.partial = rs.out.final
	}
	_, err = rs.store.Append(ctx, ledger.Event{Type: TypeFinished, Schema: 1, Key: keyFinished(), Record: record(map[string]string{
		"sums_sha256": sealed.SumsSHA256, "decision_root": sealed.DecisionRoot})}).Wait(ctx)
	if err != nil {
		return err
	}
	return rs.store.Sync(ctx)
}

// seal makes everything durable under OUT.partial and says so.
func (rs *runState) seal(ctx context.Context) (*SealedRecord, error) {
	if e, ok, err := rs.store.Get(keySealed()); err != nil {
		return nil, err
	} else if ok {
		rec := &SealedRecord{}
		return rec, readRecord(e, rec)
	}
	decisions, err := rs.decisions(ctx)
	if err != nil {
		return nil, err
	}
	files, index, err := rs.shardFiles()
	if err != nil {
		return nil, err
	}
	put := func(name string, b []byte) error {
		if err := checkpoint.WriteFile(filepath.Join(rs.out.partial, name), b); err != nil {
			return err
		}
		files = append(files, FileDigest{Name: name, Size: int64(len(b)), SHA256: digest(b)})
		return nil
	}
	if err := put("model.safetensors.index.json", index); err != nil {
		return nil, err
	}
	conf, err := rs.plan.format.Config(rs.written(decisions))
	if err != nil {
		return nil, err
	}
	config, err := rs.plan.checkpoint.OutputConfig(conf.QuantizationConfig)
	if err != nil {
		return nil, err
	}
	if err := put("config.json", config); err != nil {
		return nil, err
	}
	extra := make([]string, 0, len(conf.Files))
	for name := range conf.Files {
		extra = append(extra, name)
	}
	sort.Strings(extra)
	for _, name := range extra {
		if err := put(name, conf.Files[name]); err != nil {
			return nil, err
		}
	}
	for _, f := range rs.plan.checkpoint.SideFiles() {
		if conf.Files[f.Name] != nil {
			continue
		}
		b, err := os.ReadFile(f.Path)
		if err != nil {
			return nil, err
		}
		if dir := filepath.Dir(f.Name); dir != "." {
			if err := os.MkdirAll(filepath.Join(rs.out.partial, dir), 0o755); err != nil {
				return nil, err
			}
		}
		if err := put(f.Name, b); err != nil {
			return nil, err
		}
	}
	sumsFile := sums(files)
	rec := &SealedRecord{Files: files, SumsSHA256: digest(sumsFile)}
	sort.Slice(rec.Files, func(i, j int) bool { return rec.Files[i].Name < rec.Files[j].Name })
	if rec.DecisionRoot, err = rs.decisionRoot(ctx, decisions); err != nil {
		return nil, err
	}
	if err := rs.removeStrays(files); err != nil {
		return nil, err
	}
	if err := checkpoint.WriteFile(filepath.Join(rs.out.partial, SumsFile), sumsFile); err != nil {
		return nil, err
	}
	if err := rs.besides(ctx, decisions, rec); err != nil {
		return nil, err
	}
	if err := checkpoint.SyncDir(rs.out.partial); err != nil {
		return nil, err
	}
	_, err = rs.store.Append(ctx, ledger.Event{Type: TypeSealed, Schema: 1, Key: keySealed(), Record: record(rec)}).Wait(ctx)
	return rec, err
}

// removeStrays takes away files of interrupted writes: nothing that the sums do not name goes out.
func (rs *runState) removeStrays(files []FileDigest) error {
	known := map[string]bool{}
	for _, f := range files {
		known[f.Name] = true
	}
	entries, err := os.ReadDir(rs.out.partial)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.IsDir() && !known[e.Name()] {
			if err := os.Remove(filepath.Join(rs.out.partial, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// decisions reads the record of every decided module, in order of layer and name.
func (rs *runState) decisions(_ context.Context) ([]ledger.Event, error) {
	var out []ledger.Event
	for i := range rs.plan.Advice.Modules {
		m := &rs.plan.Advice.Modules[i]
		if m.Scheme == nil {
			continue
		}
		e, ok, err := rs.store.Get(keyDecision(m.Layer, m.Module))
		if err != nil {
			return nil, err
		}
		if ok { // a layer whose experts are copied has none for them
			out = append(out, e)
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Key < out[j].Key })
	return out, nil
}

// producerVersion is what the output's config says of its maker: what the bytes depend on, never the build, so that
// another build of the same numbers writes the same files. The build stands in provenance.intoto.json.
const producerVersion = solverVersion + "." + kernels.ContractID

// written is what the config must describe: what was really written.
func (rs *runState) written(decisions []ledger.Event) *format.Summary {
	sum := &format.Summary{Producer: "quire", Version: producerVersion, Meta: map[string]any{
		"damp_percent": rs.settings.Identity.DampPercent, "damp_auto_increment": rs.settings.Identity.DampIncrement,
		"static_groups": rs.settings.Identity.StaticGroups, "mse": rs.settings.Identity.Scheme.MSE, "true_sequential": rs.settings.Identity.PropagateError}}
	quantized := map[string]bool{}
	for _, e := range decisions {
		var rec DecisionRecord
		if json.Unmarshal(e.Record, &rec) != nil {
			continue // read and checked before
		}
		quantized[rec.Module] = true
		_, gidx := e.Payload("gidx")
		sum.Modules = append(sum.Modules, format.Written{Name: rec.Module, Scheme: format.Scheme{Bits: rec.Scheme.Bits, GroupSize: rec.Scheme.GroupSize, Sym: rec.Scheme.Sym}, GIdx: gidx})
	}
	sum.Left = rs.plan.left(quantized)
	return sum
}

// shardFiles lists the written shards and spells the index.
func (rs *runState) shardFiles() ([]FileDigest, []byte, error) {
	var files []FileDigest
	byTensor := map[string]string{}
	var total int64
	for _, p := range rs.plan.Advice.Shards {
		e, ok, err := rs.store.Get(keyShard(p.File))
		if err != nil {
			return nil, nil, err
		}
		if !ok {
			return nil, nil, fmt.Errorf("shard %s was not written", p.File)
		}
		var rec ShardRecord
		if err := readRecord(e, &rec); err != nil {
			return nil, nil, err
		}
		st, err := os.Stat(filepath.Join(rs.out.partial, rec.File))
		if err != nil || st.Size() != rec.Size {
			return nil, nil, &Error{Code: "E0803", Exit: ExitMismatch, What: "a written shard is missing or has another size", Where: rec.File, Err: err,
				Try: "remove the run directory and start again, or restore the file"}
		}
		files = append(files, FileDigest{Name: rec.File, Size: rec.Size, SHA256: rec.SHA256})
		for name := range rec.Tensors {
			byTensor[name] = rec.File
		}
		total += rec.Bytes
	}
	index, err := checkpoint.IndexJSON(byTensor, total)
	return files, index, err
}

// decisionRoot is the RFC 6962 root over the content digests of batch, hessian and decision events in natural-key order.
// It depends on what was decided only, not on stays, threads or times.
func (rs *runState) decisionRoot(_ context.Context, decisions []ledger.Event) (string, error) {
	digests := map[string]ledger.Digest{}
	for i := range decisions {
		digests[decisions[i].Key] = decisions[i].Digest()
		for _, in := range decisions[i].Inputs {
			if strings.HasPrefix(in.Key, "hessian/") {
				digests[in.Key] = in.Digest
			}
		}
	}
	for b := range rs.batches {
		e, ok, err := rs.store.Get(keyBatch(b))
		if err != nil || !ok {
			return "", errors.Join(err, fmt.Errorf("batch %d is not in the ledger", b))
		}
		digests[e.Key] = e.Digest()
	}
	keys := make([]string, 0, len(digests))
	for k := range digests {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	hashes := map[int64]tlog.Hash{}
	for i, k := range keys {
		d := digests[k]
		stored, err := tlog.StoredHashes(int64(i), append([]byte(k+"\n"), d[:]...), tlog.HashReaderFunc(func(idx []int64) ([]tlog.Hash, error) {
			out := make([]tlog.Hash, len(idx))
			for j, x := range idx {
				out[j] = hashes[x]
			}
			return out, nil
		}))
		if err != nil {
			return "", err
		}
		at := tlog.StoredHashIndex(0, int64(i))
		for j, h := range stored {
			hashes[at+int64(j)] = h
		}
	}
	root, err := tlog.TreeHash(int64(len(keys)), tlog.HashReaderFunc(func(idx []int64) ([]tlog.Hash, error) {
		out := make([]tlog.Hash, len(idx))
		for j, x := range idx {
			out[j] = hashes[x]
		}
		return out, nil
	}))
	return fmt.Sprintf("%x", root[:]), err
}

// besides writes what no loader reads: the module log and the provenance statement.
func (rs *runState) besides(_ context.Context, decisions []ledger.Event, sealed *SealedRecord) error {
	var rows []DecisionRecord
	for _, e := range decisions {
		var rec DecisionRecord
		if err := readRecord(e, &rec); err != nil {
			return err
		}
		rows = append(rows, rec)
	}
	log, err := quantLog(rows)
	if err != nil {
		return err
	}
	if err := checkpoint.WriteFile(filepath.Join(rs.out.partial, "quant_log.csv"), log); err != nil {
		return err
	}
	var sources []FileDigest
	for _, f := range rs.plan.checkpoint.Shards() {
		e, ok, err := rs.store.Get(keySource(f.Name))
		if err != nil || !ok {
			return errors.Join(err, fmt.Errorf("source %s is not in the ledger", f.Name))
		}
		var d FileDigest
		if err := readRecord(e, &d); err != nil {
			return err
		}
		sources = append(sources, d)
	}
	e, _, err := rs.store.Get(keyGenesis())
	if err != nil {
		return err
	}
	var g GenesisRecord
	if err := readRecord(e, &g); err != nil {
		return err
	}
	stmt, err := provenance(provenanceFacts{SumsSHA256: sealed.SumsSHA256, Recipe: rs.settings.Identity, PlanDigest: g.PlanDigest, InputsDigest: g.InputsDigest, Sources: sources,
		Calibration: rs.plan.Identity.Calibration, Contract: kernels.ContractID, Tool: toolVersion(), LedgerHead: rs.store.Stats().Head.Root.String(), DecisionRoot: sealed.DecisionRoot})
	if err != nil {
		return err
	}
	return checkpoint.WriteFile(filepath.Join(rs.out.partial, "provenance.intoto.json"), append(bytes.TrimSpace(stmt), '\n'))
}

func toolVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
}

// alreadyFinished answers a run whose output is published: names and sizes are checked, nothing is done.
func (rs *runState) alreadyFinished(ctx context.Context) (*Result, error) {
	r, err := ledger.OpenReader(rs.settings.RunDir, ledger.Options{})
	if err != nil { // none, or one in work: opening it for writing will tell
		return nil, nil
	}
	defer r.Close()
	if _, ok, err := r.Get(keyFinished()); err != nil || !ok {
		return nil, nil
	}
	e, ok, err := r.Get(keySealed())
	if err != nil || !ok {
		return nil, errors.Join(err, errors.New("a finished run without its seal"))
	}
	var sealed SealedRecord
	if err := readRecord(e, &sealed); err != nil {
		return nil, err
	}
	g, _, err := r.Get(keyGenesis())
	if err != nil {
		return nil, err
	}
	var gen GenesisRecord
	if err := readRecord(g, &gen); err != nil {
		return nil, err
	}
	if gen.PlanDigest != rs.plan.Digest {
		was, _ := canonicalJSON(gen.Identity)
		now, _ := canonicalJSON(rs.plan.Identity)
		return nil, &Error{Code: "E0703", Exit: ExitIdentity, What: "this run directory holds a finished run with other settings", Where: rs.settings.RunDir,
			Why: strings.Join(resume.Diff(was, now), "; "), Try: "choose another -o and --run-dir"}
	}
	for _, f := range sealed.Files {
		st, err := os.Stat(filepath.Join(rs.settings.Output, f.Name))
		if err != nil || st.Size() != f.Size {
			return nil, &Error{Code: "E0803", Exit: ExitMismatch, What: "the run is finished, but a file of its output is missing or has another size", Where: f.Name, Err: err,
				Try: "restore the file, or remove output and run directory and run again"}
		}
	}
	res := &Result{Output: rs.settings.Output, RunDir: rs.settings.RunDir, PlanDigest: gen.PlanDigest, DecisionRoot: sealed.DecisionRoot, SumsSHA256: sealed.SumsSHA256,
		Modules: rs.plan.Advice.Counts, Events: r.Head().Seq, LedgerRoot: r.Head().Root.String(), AlreadyDone: true}
	return res, ctx.Err()
}

// result sums a run up.
func (rs *runState) result(ctx context.Context) (*Result, error) {
	e, ok, err := rs.store.Get(keySealed())
	if err != nil || !ok {
		return nil, errors.Join(err, errors.New("the run ended without a seal"))
	}
	var sealed SealedRecord
	if err := readRecord(e, &sealed); err != nil {
		return nil, err
	}
	res := &Result{Output: rs.settings.Output, RunDir: rs.settings.RunDir, PlanDigest: rs.plan.Digest, Modules: rs.plan.Advice.Counts,
		DecisionRoot: sealed.DecisionRoot, SumsSHA256: sealed.SumsSHA256, WallS: time.Since(rs.began).Seconds(), PeakRSSBytes: peakRSS(), CalibPPL: rs.calibrationPPL, Findings: append([]Finding{}, rs.findings...)}
	decisions, err := rs.decisions(ctx)
	if err != nil {
		return nil, err
	}
	res.Modules.Copied += res.Modules.Quantized - len(decisions)
	res.Modules.Quantized = len(decisions)
	for _, d := range decisions {
		var rec DecisionRecord
		if err := readRecord(d, &rec); err != nil {
			return nil, err
		}
		if rec.Fallback != "" {
			res.Modules.Fallback++
		}
	}
	h := rs.store.Stats().Head
	res.Events, res.LedgerRoot = h.Seq, h.Root.String()
	return res, nil
}
