package ledger

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// What fails while a file is made longer comes out of bbolt as text.
func TestCauseOfAGrowingFile(t *testing.T) {
	for _, n := range []syscall.Errno{syscall.EIO, syscall.ENOSPC, syscall.EROFS, syscall.EDQUOT} {
		inner := &os.PathError{Op: "sync", Path: "ledger.db", Err: n}
		err := causeOf(fmt.Errorf("file sync error: %s", inner))
		require.ErrorIs(t, err, n)
		require.Equal(t, "file sync error: "+inner.Error(), err.Error())
		require.Same(t, inner, causeOf(inner), "it has its cause")
	}
	require.NoError(t, causeOf(nil))
	other := errors.New("input/output")
	require.Same(t, other, causeOf(other))
}
