package chat_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPlainCloneRenderings runs the golden files that lie in the repository.
func TestPlainCloneRenderings(t *testing.T) {
	files, err := filepath.Glob("../../../testdata/text/chat/*.json")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".json"), func(t *testing.T) { checkGolden(t, f) })
	}
}
