package checkpoint

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// A Hugging Face cache entry:
//
//	models--owner--name/refs/main            names a revision
//	models--owner--name/snapshots/REVISION/  symbolic links into blobs/

var hubID = regexp.MustCompile(`^([A-Za-z0-9][\w.-]*)/([A-Za-z0-9][\w.-]*)(?:@([\w.-]+))?$`)

// Directory gives the directory that a model's path stands for: a directory is itself, a file is its directory, and a cache entry
// (its directory, or owner/name[@revision]) is the snapshot it names. Nothing in it is looked at.
func Directory(path string) (string, error) {
	dir, _, err := locate(path)
	return dir, err
}

// cached resolves owner/name[@revision] in the cache of this user; any other path does not exist.
func cached(path string) (dir, single string, err error) {
	missing := fail(codeNoPath, path, "", -1, "check the spelling; quire does not download models", "there is no such file or directory")
	m := hubID.FindStringSubmatch(filepath.ToSlash(path))
	if m == nil {
		return "", "", missing
	}
	for _, root := range hubRoots() {
		entry := filepath.Join(root, "models--"+m[1]+"--"+m[2])
		if st, err := os.Stat(filepath.Join(entry, "snapshots")); err == nil && st.IsDir() {
			return cacheRevision(entry, m[3])
		}
	}
	return "", "", missing
}

// hubRoots lists where the hub's own tools keep their cache.
func hubRoots() []string {
	var out []string
	if d := os.Getenv("HF_HUB_CACHE"); d != "" {
		out = append(out, d)
	}
	if d := os.Getenv("HF_HOME"); d != "" {
		out = append(out, filepath.Join(d, "hub"))
	}
	if d, err := os.UserHomeDir(); err == nil {
		out = append(out, filepath.Join(d, ".cache", "huggingface", "hub"))
	}
	return out
}

// cacheRevision picks the snapshot of a cache entry: the wanted one (a revision or the name of a ref), else that of
// refs/main, else the only one.
func cacheRevision(path, want string) (string, string, error) {
	snapshots := filepath.Join(path, "snapshots")
	is := func(d string) bool {
		st, err := os.Stat(d)
		return err == nil && st.IsDir()
	}
	ref := want
	if ref == "" {
		ref = "main"
	}
	if want != "" && is(filepath.Join(snapshots, want)) {
		return filepath.Join(snapshots, want), "", nil
	}
	if b, err := os.ReadFile(filepath.Join(path, "refs", ref)); err == nil {
		if rev := strings.TrimSpace(string(b)); rev != "" && rev == filepath.Base(rev) && is(filepath.Join(snapshots, rev)) {
			return filepath.Join(snapshots, rev), "", nil
		}
	}
	if want != "" {
		return "", "", fail(codeCacheAmbiguous, path, "", -1, "name a revision that is under "+snapshots, "the cache entry has no revision %q", want)
	}
	entries, err := os.ReadDir(snapshots)
	if err != nil {
		return "", "", ioError(codeIORead, snapshots, err)
	}
	if len(entries) != 1 {
		return "", "", fail(codeCacheAmbiguous, path, "", -1, "name one: "+snapshots+"/REVISION", "the cache entry holds %d revisions and no usable ref", len(entries))
	}
	return filepath.Join(snapshots, entries[0].Name()), "", nil
}
