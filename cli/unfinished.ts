// Work that must end before this process ends or is replaced, though its result is no longer waited for.

const unfinished = new Set<Promise<unknown>>()

export function untilFinished<T> (work: Promise<T>): Promise<T> {
  unfinished.add(work)
  const forget = () => { unfinished.delete(work) }
  work.then(forget, forget)
  return work
}

export const hasUnfinished = (): boolean => unfinished.size > 0
export const allFinished = (): Promise<unknown> => Promise.allSettled(unfinished)
