package ledger_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"quire/ledger"
	"quire/ledger/codec"
)

// A ledger is made, gets an event with a payload, and is read back and verified by one who trusts nothing in it.
func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "ledger")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	l, err := ledger.Create(ctx, dir, ledger.Genesis{Record: []byte(`{"experiment":"first"}`)}, ledger.Options{
		Types: []ledger.Type{{Name: "measurement", Schema: 1, Roles: []string{"samples"}}},
	})
	if err != nil {
		log.Fatal(err)
	}
	// The payload is durable when Put returns. It exists for readers once an event names it.
	samples := make([]byte, 1<<20) // 2-byte elements
	ref, err := l.PutBytes(ctx, ledger.ClassLayer, "day-1", codec.Planes2, samples)
	if err != nil {
		log.Fatal(err)
	}
	e, err := l.Append(ctx, ledger.Event{Type: "measurement", Schema: 1, Key: "measurement/day-1/probe-7",
		Record: []byte(`{"volts":230}`), Payloads: []ledger.Payload{ref.Payload("samples")}}).Wait(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("event %d names %d bytes, stored in fewer: %v\n", e.Seq, ref.Length, ref.Stored < ref.Length)

	// A repetition with the same content gives the old event; other content under the same key is refused.
	_, err = l.Append(ctx, ledger.Event{Type: "measurement", Schema: 1, Key: e.Key, Record: []byte(`{"volts":110}`)}).Wait(ctx)
	fmt.Println(err)
	if err := l.Close(ctx, "done"); err != nil {
		log.Fatal(err)
	}

	r, err := ledger.OpenReader(dir, ledger.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer r.Close()
	for e, err := range r.Scan("measurement/day-1/") {
		if err != nil {
			log.Fatal(err)
		}
		b, err := r.ReadPayload(ctx, e, "samples") // checks every chunk and the SHA-256
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s %s, %d bytes of samples\n", e.Key, e.Record, len(b))
	}
	report, err := ledger.Fsck(ctx, dir, ledger.FsckOptions{Level: ledger.LevelDeep})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%d events and %d payload checked, damaged: %v\n", report.Events, report.Payloads, report.Damaged())

	proof, err := r.Prove(e.Seq)
	if err != nil {
		log.Fatal(err)
	}
	proven, err := proof.Check() // needs no ledger, only a head that is trusted
	fmt.Println("proven:", proven.Key, err)
	// Output:
	// event 3 names 1048576 bytes, stored in fewer: true
	// divergence at measurement/day-1/probe-7: number of payloads differs from event 3 (recorded 235dc19dd423, now b786d92c301e)
	// measurement/day-1/probe-7 {"volts":230}, 1048576 bytes of samples
	// 4 events and 1 payload checked, damaged: false
	// proven: measurement/day-1/probe-7 <nil>
}
