package shm

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Memory is shared memory that is mapped into this process.
type Memory struct {
	// Bytes is the memory, at a multiple of a huge page. It is sparse: a page
	// that nobody has used needs no memory.
	Bytes []byte

	mapping []byte // a huge page for the check, then Bytes
	file    *os.File
	ticket  ticket
}

// ticket says where a process finds the memory.
type ticket struct {
	PID   int    // of the process that has made it
	FD    int    // in that process
	Size  int    // of Bytes
	Check string // how the mapping begins
}

// huge is the size of a huge page.
const huge = 2 << 20

// Create makes memory of size zeros. ulimit -v and -f bound the size.
func Create(size int) (m *Memory, err error) {
	fd, err := unix.MemfdCreate("shardfeed", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	m = &Memory{file: os.NewFile(uintptr(fd), "memfd:shardfeed"), ticket: ticket{os.Getpid(), fd, size, rand.Text()}}
	if err = m.file.Truncate(huge + int64(size)); err == nil {
		err = m.mmap()
	}
	if err == nil { // nobody can cut it short: that would end the others by a fault
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_GROW|unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL)
	}
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	copy(m.mapping, m.ticket.Check)
	return m, nil
}

// Ticket is for Open in another process. It is good until Detach or Close.
func (m *Memory) Ticket() []byte {
	text, _ := json.Marshal(m.ticket) // of numbers and letters
	return text
}

// Open maps the memory that another process has made. What it finds in its
// place, after that process has ended or in another container, is an error.
func Open(text []byte) (m *Memory, err error) {
	m = new(Memory)
	if err := json.Unmarshal(text, &m.ticket); err != nil {
		return nil, fmt.Errorf("%q is no ticket for shared memory: run the same program on every rank", text)
	}
	path := fmt.Sprintf("/proc/%d/fd/%d", m.ticket.PID, m.ticket.FD)
	if m.file, err = os.OpenFile(path, os.O_RDWR, 0); err != nil {
		return nil, fmt.Errorf("shared memory: %w: all ranks have to run as one user in one container", err)
	}
	info, err := m.file.Stat()
	right := err == nil && info.Size() == huge+int64(m.ticket.Size)
	if right {
		if err := m.mmap(); err != nil {
			return nil, errors.Join(err, m.Close())
		}
		right = strings.HasPrefix(string(m.mapping[:huge]), m.ticket.Check)
	}
	if !right {
		return nil, errors.Join(fmt.Errorf("%s is not the shared memory of the run: all ranks have to run in one container", path), m.Close())
	}
	return m, nil
}

func (m *Memory) mmap() (err error) {
	size := huge + m.ticket.Size
	m.mapping, err = unix.Mmap(int(m.file.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		return fmt.Errorf("address space for %d bytes of shared memory: %w: ulimit -v may be too low", size, err)
	}
	m.Bytes = m.mapping[huge:size:size]
	return nil
}

// Back has the system find memory for the bytes i … j-1 now: where there is
// none, that is an error here, and would be a fault at their first use.
func (m *Memory) Back(i, j int) error {
	if i == j {
		return nil
	}
	pages := m.Bytes[i&^(os.Getpagesize()-1) : j]
	unix.Madvise(pages, unix.MADV_HUGEPAGE) // needs shmem_enabled to be advise; it is never, mostly
	err := unix.Madvise(pages, unix.MADV_POPULATE_WRITE)
	if err != nil && err != unix.EINVAL { // EINVAL: before Linux 5.14
		return fmt.Errorf("the system has no %d bytes of shared memory left: %w", j-i, err)
	}
	return nil
}

// Detach closes the file, when all processes have the memory: it stays.
func (m *Memory) Detach() error {
	file := m.file
	m.file = nil
	return file.Close()
}

// Close gives the memory up. Bytes must not be used any more.
func (m *Memory) Close() (err error) {
	if m.file != nil {
		err = m.Detach()
	}
	if m.mapping != nil {
		err = errors.Join(err, unix.Munmap(m.mapping))
	}
	m.mapping, m.Bytes = nil, nil
	return err
}
