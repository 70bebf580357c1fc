package weights

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"github.com/hawser-project/hawser"
)

// journal is a file of records that only grows. A record is on disk when append returns. One controller has it open at a time.
type journal struct {
	id [16]byte // random, made with the file: an empty directory is another journal
	f  *os.File
}

// A journal file is journalMagic, the id, and records: length and checksum of the payload (u32, little endian), and the payload.
const (
	journalMagic = "hawser-weights-1"
	journalName  = "journal"
	maxRecord    = 16 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// openJournal opens the journal of a directory, or makes one, and returns its records. A record at the end that was not written in full, by a
// process that was killed, was never acted on, and is dropped.
func openJournal(dir string) (*journal, [][]byte, error) {
	name := filepath.Join(dir, journalName)
	j, records, err := openJournalFile(name)
	if err != nil {
		return nil, nil, fmt.Errorf("journal %s: %w", name, err)
	}
	return j, records, nil
}

func openJournalFile(name string) (*journal, [][]byte, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, nil, err
	}
	j := &journal{f: f}
	records, err := j.open()
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return j, records, nil
}

func (j *journal) open() ([][]byte, error) {
	if err := syscall.Flock(int(j.f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, fmt.Errorf("%w: another controller has it open", hawser.ErrBusy)
	}
	data, err := io.ReadAll(j.f)
	if err != nil {
		return nil, err
	}
	if len(data) < len(journalMagic)+len(j.id) {
		return nil, j.create()
	}
	if string(data[:len(journalMagic)]) != journalMagic {
		return nil, fmt.Errorf("%w: it is not a journal of this version", hawser.ErrInvalid)
	}
	copy(j.id[:], data[len(journalMagic):])
	records, end, err := parseRecords(data, len(journalMagic)+len(j.id))
	if err != nil {
		return nil, err
	}
	if err := j.f.Truncate(int64(end)); err != nil {
		return nil, err
	}
	_, err = j.f.Seek(int64(end), io.SeekStart)
	return records, err
}

// create begins an empty journal, durably: the file, then its name.
func (j *journal) create() error {
	_, _ = rand.Read(j.id[:])
	if err := j.f.Truncate(0); err != nil {
		return err
	}
	if _, err := j.f.WriteAt(append([]byte(journalMagic), j.id[:]...), 0); err != nil {
		return err
	}
	if err := j.f.Sync(); err != nil {
		return err
	}
	if _, err := j.f.Seek(0, io.SeekEnd); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(j.f.Name()))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// parseRecords returns the records from at, and where the last whole one ends. Damage before the last record is an error.
func parseRecords(data []byte, at int) (records [][]byte, end int, err error) {
	for at < len(data) {
		rest := data[at:]
		if len(rest) < 8 {
			break
		}
		n := int(le.Uint32(rest))
		if n > maxRecord || len(rest) < 8+n {
			break
		}
		body := rest[8 : 8+n]
		if crc32.Checksum(body, castagnoli) != le.Uint32(rest[4:]) {
			if len(rest) > 8+n {
				return nil, 0, fmt.Errorf("%w: record %d at byte %d has a wrong checksum, and others follow", hawser.ErrInvalid, len(records), at)
			}
			break
		}
		records = append(records, bytes.Clone(body))
		at += 8 + n
	}
	return records, at, nil
}

// append writes a record durably.
func (j *journal) append(record []byte) error {
	b := make([]byte, 8, 8+len(record))
	le.PutUint32(b, uint32(len(record)))
	le.PutUint32(b[4:], crc32.Checksum(record, castagnoli))
	if _, err := j.f.Write(append(b, record...)); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	if err := j.f.Sync(); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	return nil
}

func (j *journal) close() error { return j.f.Close() }
