/** Watches work that another thread does, and that may hang. */
export interface Watchdog {
  /** Work begins, which is to be watched until `end`. */
  begin (): void
  end (): void
  /** The other thread gave a sign of life. */
  heard (): void
  /**
   * For work of unknown length: as long as `progress` moves, it goes on. `what` is said to whoever waits for it.
   * Answers how to end this.
   */
  patiently (what: string): () => void
  /** Looks whether the work goes on. Called by a timer. */
  look (): void
}

export interface WatchdogOptions {
  /** Milliseconds without a sign of life after which work is given up. */
  silence: number
  /** The same for patient work, and there `progress` is a sign of life. */
  patience: number
  /** A number that the other thread moves while it works. */
  progress (): number
  /** Called now and then while somebody waits patiently. */
  onWait (line: string): void
  /** Called when work is given up, with the reason. */
  onStall (reason: string): void
  now? (): number
}

const SAY_EVERY = 10_000

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
      if (patient !== undefined && now() - patient.said >= SAY_EVERY) {
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
