import { monitorEventLoopDelay, performance } from 'node:perf_hooks'
import type { Metrics } from './metrics.ts'

const RESOLUTION_MS = 20
const QUANTILES = [0.5, 0.99, 1]

/** Measures the event loop, CPU time and memory. Returns a function that stops the event loop monitor. */
export function measureProcess (metrics: Metrics): () => void {
  const delay = monitorEventLoopDelay({ resolution: RESOLUTION_MS })
  delay.enable()
  metrics.watch('gauge', 'strongroom_event_loop_delay_seconds',
    'How late the event loop was, since the last scrape', () => {
      // Each measured delay includes the sampling interval.
      const late = (quantile: number) => Math.max(0, delay.percentile(quantile * 100) / 1e9 - RESOLUTION_MS / 1000)
      const values = delay.count === 0 ? [] : QUANTILES.map((quantile) => [{ quantile }, late(quantile)] as const)
      delay.reset()
      return values
    }, ['quantile'])
  let before = performance.eventLoopUtilization()
  metrics.watch('gauge', 'strongroom_event_loop_utilization',
    'Share of the time in which the event loop was busy, since the last scrape', () => {
      const now = performance.eventLoopUtilization()
      const { utilization } = performance.eventLoopUtilization(now, before)
      before = now
      return utilization
    })
  metrics.watch('counter', 'process_cpu_seconds_total', 'CPU time, user and system', () => {
    const { user, system } = process.cpuUsage()
    return (user + system) / 1e6
  })
  metrics.watch('gauge', 'process_start_time_seconds', 'Start of the process, in seconds since 1970',
    () => performance.timeOrigin / 1000)
  metrics.watch('gauge', 'process_resident_memory_bytes', 'Resident memory', () => process.memoryUsage.rss())
  metrics.watch('gauge', 'nodejs_memory_bytes', 'Memory of V8 and of buffers', () => {
    const { rss, ...parts } = process.memoryUsage()
    return Object.entries(parts).map(([of, bytes]) => [{ of }, bytes] as const)
  }, ['of'])
  return () => delay.disable()
}
