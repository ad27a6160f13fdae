package powercut_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"quire/internal/powercut"
)

// TestCut shows that the cut is one: what was synced is there afterwards, what was only written is not.
func TestCut(t *testing.T) {
	if err := powercut.Available(); err != nil {
		t.Logf("LEFT OUT: TestCut: %v", err)
		return
	}
	d, err := powercut.New(t.TempDir(), 32<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}()
	write := func(name string, sync bool) {
		f, err := os.Create(filepath.Join(d.Dir(), name))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.Write(bytes.Repeat([]byte(name), 10000)); err != nil {
			t.Fatal(err)
		}
		if sync {
			if err := f.Sync(); err != nil {
				t.Fatal(err)
			}
		}
	}
	write("synced", true)
	write("written", false)
	if err := d.Cut(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(d.Dir(), "late"), nil, 0o644); err == nil {
		t.Fatal("a dead disk takes writes")
	}
	if err := d.Restore(); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(d.Dir(), "synced")); err != nil || len(b) != 60000 {
		t.Fatalf("%d bytes of 60000 are left: %v", len(b), err)
	}
	if b, err := os.ReadFile(filepath.Join(d.Dir(), "written")); err == nil && len(b) != 0 {
		t.Fatalf("%d bytes that were never synced outlived the cut", len(b))
	}
}
