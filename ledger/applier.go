package ledger

// swap lets the other area of the journal take records: those of this one begin their way to ledger.db, once those of the
// other are there.
func (w *eventWriter) swap() error {
	_ = w.await()
	for w.moving != nil { // it did not get there
		if err := w.l.usable(); err != nil {
			return err
		}
		w.move()
		if err := w.await(); err != nil {
			return err
		}
	}
	w.move()
	return w.l.usable()
}

// move starts bringing the older layer to ledger.db, unless that is going on.
func (w *eventWriter) move() {
	if w.moved != nil || w.l.usable() != nil {
		return
	}
	if w.moving == nil {
		if w.active == nil {
			return
		}
		w.moving, w.active = w.active, nil
		w.journal.swap()
	}
	y, moved := w.moving, make(chan error, 1)
	w.moved = moved
	go func() {
		moved <- w.persist(y.bytes, func() error { return bring(w.l.db, y) })
	}()
}

// arrived takes the answer of move.
func (w *eventWriter) arrived(err error) {
	w.moved = nil
	if err == nil {
		failpoint("journal.applied")
		w.moving = nil
		w.tail.drop()
	}
}

// await waits for the end of move, and says why it failed.
func (w *eventWriter) await() error {
	if w.moved == nil {
		return nil
	}
	err := <-w.moved
	w.arrived(err)
	return err
}

// settle brings everything that is in the journal to ledger.db.
func (w *eventWriter) settle() error {
	_ = w.await()
	for w.moving != nil || w.active != nil {
		if err := w.l.usable(); err != nil {
			return err
		}
		w.move()
		if err := w.await(); err != nil {
			return err
		}
	}
	return nil
}
