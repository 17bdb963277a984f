interface WatchdogOptions {
  /** Milliseconds without a message after which work is aborted. */
  silence: number
  /** The limit during `patiently`, where a change of `progress` counts like a message. */
  patience: number
  /** A counter that the other thread increments while it works. */
  progress (): number
  /** Called from time to time with a progress message during `patiently`. */
  onWait (line: string): void
  /** Called with the reason when work is aborted. */
  onStall (reason: string): void
  now? (): number
}

const REPORT_INTERVAL_MS = 10_000

export type Watchdog = ReturnType<typeof createWatchdog>

/** Detects that another thread hangs. While that thread works, it must send messages or change `progress`. */
export function createWatchdog (
  { silence, patience, progress, onWait, onStall, now = () => performance.now() }: WatchdogOptions
) {
  let working = 0
  let sign = now()
  let moved = progress()
  let patient: { what: string, since: number, said: number } | undefined

  return {
    /** Starts to watch the work, until `end`. */
    begin () {
      if (working++ === 0) sign = now()
    },
    end () {
      working--
    },
    /** The other thread sent a message. */
    heard () {
      sign = now()
    },
    /** Allows work to take long while `progress` changes, until the returned function is called. */
    patiently (what: string): () => void {
      const mine = patient = { what, since: now(), said: now() }
      return () => { if (patient === mine) patient = undefined }
    },
    /** Checks whether the work makes progress. Called by a timer. */
    look () {
      const current = progress()
      if (patient !== undefined && current !== moved) sign = now()
      moved = current
      if (working === 0) return
      if (patient !== undefined && now() - patient.said >= REPORT_INTERVAL_MS) {
        patient.said = now()
        const seconds = Math.round((now() - patient.since) / 1000)
        onWait(`Waiting for the embedded database, which ${patient.what} (${seconds} s)`)
      }
      const limit = patient === undefined ? silence : patience
      if (now() - sign <= limit) return
      const quiet = `no sign of life for ${limit / 1000} s`
      onStall(patient === undefined ? quiet : `${quiet} while it ${patient.what}`)
    }
  }
}
