// Package bench measures the stages of the pipeline, each beside its limit in
// the same run: a gather beside memcpy of the same bytes, a loader beside a
// plain loop, training with data beside training on one fixed batch.
//
//	go test -run '^$' -bench . ./bench
//
// An absolute time means little on a shared machine; the ratio of two lines of
// one run means much. The figures say how many batches of which size.
package bench
