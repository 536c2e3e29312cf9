// Package shm is memory that processes on one machine share. It is a memfd, a
// file without a name: nothing is left of it when the last process that has
// it is gone, however that ended.
//
// A process makes the memory and hands a ticket to the others, which open
// /proc/PID/fd/N by it. They have to run as one user and see each other's
// processes.
package shm
