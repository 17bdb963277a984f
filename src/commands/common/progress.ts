import { SingleBar } from 'cli-progress'
import { Interrupted } from './command-errors.ts'
import { endBy, interceptSignal, statusOf, type Signal } from './scratch.ts'
import { ownTerminal, setDisplay, warn, type Progress, type ProgressOptions } from './stdio.ts'

/** For callers that show no progress and cannot be interrupted. */
export const NO_PROGRESS: Progress = {
  signal: new AbortController().signal, begin () {}, advance () {}, leaves () {}
}

const LINE_INTERVAL_MS = 10_000
// After a signal, a command may take this long until its next `advance`, and then to roll back and close the database.
const STEP_TIMEOUT_MS = 2_000
const END_TIMEOUT_MS = 15_000

/**
 * Runs a long command. Shows a progress bar if standard error is a terminal, otherwise a line every ten seconds. Inside
 * the service, the client of the command shows the progress and handles the signals.
 *
 * @throws Interrupted if SIGINT or SIGTERM ended the command
 */
export async function withProgress<T> (
  options: ProgressOptions, run: (progress: Progress) => Promise<T>
): Promise<T> {
  const own = ownTerminal()?.progress(options)
  // The end of the client or of the service may have caused another error.
  if (own !== undefined) return run(own).catch((error) => { throw own.signal.aborted ? own.signal.reason : error })
  const { json = false, isData = false } = options
  let { left } = options
  const interruption = new AbortController()
  let signalled: Signal | undefined
  let timer: NodeJS.Timeout | undefined
  const endAfter = (ms: number, signal: Signal) => {
    clearTimeout(timer)
    timer = setTimeout(() => {
      display.end()
      warn(sentence(left))
      endBy(signal)
    }, ms)
  }
  const restore = interceptSignal((signal) => {
    signalled = signal
    endAfter(STEP_TIMEOUT_MS, signal)
    interruption.abort(new Interrupted(sentence(left), statusOf(signal)))
    if (process.stderr.isTTY) warn('Stopping')
  })
  const display = displayFor(json || (isData && process.stdout.isTTY))
  try {
    return await run({
      signal: interruption.signal,
      begin: display.begin,
      advance (by = 1) {
        if (signalled !== undefined) endAfter(END_TIMEOUT_MS, signalled)
        interruption.signal.throwIfAborted()
        display.advance(by)
      },
      leaves (now) { left = now }
    })
  } catch (error) {
    // The interruption may have caused another error, such as that of a closed database.
    throw signalled === undefined ? error : new Interrupted(sentence(left), statusOf(signalled))
  } finally {
    clearTimeout(timer)
    display.end()
    restore()
  }
}

/** Advances the progress by the length of each chunk. */
export async function * advancing (chunks: AsyncIterable<Buffer>, progress: Progress): AsyncGenerator<Buffer> {
  for await (const chunk of chunks) {
    progress.advance(chunk.length)
    yield chunk
  }
}

const sentence = (left: string) => `Interrupted. ${left}`

interface Display { begin: Progress['begin'], advance (by: number): void, end (): void }

/** The current step of a display. */
interface Step { name: string, unit: string, total: number | undefined, done: number, since: number }

const beginStep = (name: string, unit: string, total: number | undefined): Step =>
  // A total of 0 means unknown: a deleted organization has events, but no counter row with their number.
  ({ name, unit, total: total || undefined, done: 0, since: performance.now() })

function displayFor (isSilent: boolean): Display {
  if (isSilent) return { begin () {}, advance () {}, end () {} }
  return process.stderr.isTTY ? bars() : lines(LINE_INTERVAL_MS)
}

/** Writes a line about the current step at each interval. */
export function lines (intervalMs: number): Display {
  let step: Step | undefined
  const timer = setInterval(() => { if (step !== undefined) warn(describe(step)) }, intervalMs).unref()
  return {
    begin (...of) { step = beginStep(...of) },
    advance (by) { if (step !== undefined) step.done += by },
    end () { clearInterval(timer) }
  }
}

// The bar disappears at the end of a step, and before other output.
function bars (): Display {
  let step: Step | undefined
  let bar: SingleBar | undefined
  const end = () => {
    bar?.stop()
    bar = undefined
  }
  setDisplay(() => { if (bar !== undefined) process.stderr.write('\r\x1b[K') })
  return {
    begin (...of) {
      end()
      step = beginStep(...of)
      bar = new SingleBar({
        format: step.total === undefined ? '{text}' : '{name} {bar} {text}',
        stream: process.stderr,
        barCompleteChar: '#',
        barIncompleteChar: '-',
        barsize: 24,
        clearOnComplete: true,
        // `withProgress` handles signals.
        gracefulExit: false,
        hideCursor: null
      })
      bar.start(step.total ?? 0, 0, { name: step.name, text: textOf(step) })
    },
    advance (by) {
      if (step === undefined) return
      step.done += by
      const { done, total } = step
      bar?.update(Math.min(done, total ?? 0), { text: textOf(step) })
    },
    end () {
      end()
      setDisplay(() => {})
    }
  }
}

// With a total, the bar already shows the name of the step.
const textOf = (step: Step) => step.total === undefined ? describe(step) : amount(step)

const describe = (step: Step) => `${step.name}: ${amount(step)}`

function amount ({ unit, total, done, since }: Step): string {
  const shown = (number: number) => unit === 'bytes' ? (number / 2 ** 20).toFixed(1) : String(number)
  const name = unit === 'bytes' ? 'MiB' : unit
  if (total === undefined) return `${shown(done)} ${name}`
  // `done` can exceed the total, because rows can be added while the step runs.
  const share = Math.min(1, done / total)
  const left = share === 0 ? '' : `, ${duration((performance.now() - since) * (1 - share) / share)} left`
  return `${shown(done)} of ${shown(Math.max(done, total))} ${name}, ${Math.floor(share * 100)} %${left}`
}

function duration (ms: number): string {
  const seconds = Math.ceil(ms / 1000)
  if (seconds < 100) return `${seconds} s`
  return seconds < 6_000 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`
}
