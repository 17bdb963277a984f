/** Detects when another thread hangs. */
export interface Watchdog {
  /** Work begins; it is watched until `end`. */
  begin (): void
  end (): void
  /** The other thread sent a message. */
  heard (): void
  /**
   * Allows work of unknown length as long as `progress` changes, until the returned function is called. `what` names
   * the work in progress messages.
   */
  patiently (what: string): () => void
  /** Checks whether the work makes progress. Called by a timer. */
  look (): void
}

export interface WatchdogOptions {
  /** Milliseconds without a message after which work is aborted. */
  silence: number
  /** The same limit for `patiently`, where a change of `progress` counts as well. */
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

export function createWatchdog ({
  silence, patience, progress, onWait, onStall, now = () => performance.now()
}: WatchdogOptions): Watchdog {
  let working = 0
  let sign = now()
  let moved = progress()
  let patient: { what: string, since: number, said: number } | undefined

  return {
    begin () {
      if (working++ === 0) sign = now()
    },
    end () {
      working--
    },
    heard () {
      sign = now()
    },
    patiently (what) {
      const mine = patient = { what, since: now(), said: now() }
      return () => { if (patient === mine) patient = undefined }
    },
    look () {
      const current = progress()
      if (patient !== undefined && current !== moved) sign = now()
      moved = current
      if (working === 0) return
      if (patient !== undefined && now() - patient.said >= REPORT_INTERVAL_MS) {
        patient.said = now()
        onWait(
          `Waiting for the embedded database, which ${patient.what} (${Math.round((now() - patient.since) / 1000)} s)`
        )
      }
      const limit = patient === undefined ? silence : patience
      if (now() - sign <= limit) return
      const quiet = `no sign of life for ${limit / 1000} s`
      onStall(patient === undefined ? quiet : `${quiet} while it ${patient.what}`)
    }
  }
}
