import { monitorEventLoopDelay, performance } from 'node:perf_hooks'
import type { Metrics } from './metrics.ts'

// Milliseconds between two looks at the event loop.
const RESOLUTION = 20
const QUANTILES = [0.5, 0.99, 1]
const NANOSECONDS = 1e9
const MICROSECONDS = 1e6

/** Measures this process: its event loop, time and memory. Answers how to end that. */
export function measureProcess (metrics: Metrics): () => void {
  const delay = monitorEventLoopDelay({ resolution: RESOLUTION })
  delay.enable()
  metrics.watch('gauge', 'strongroom_event_loop_delay_seconds',
    'How much later than asked the event loop came around, since this was read last', () => {
      // It counts its own pause as well.
      const late = (quantile: number) => Math.max(0, delay.percentile(quantile * 100) / NANOSECONDS - RESOLUTION / 1000)
      const values = delay.count === 0 ? [] : QUANTILES.map((q) => [{ quantile: String(q) }, late(q)] as const)
      delay.reset()
      return values
    })
  let before = performance.eventLoopUtilization()
  metrics.watch('gauge', 'strongroom_event_loop_utilization',
    'The share of the time in which the event loop was busy, since this was read last', () => {
      const now = performance.eventLoopUtilization()
      const { utilization } = performance.eventLoopUtilization(now, before)
      before = now
      return utilization
    })
  metrics.watch('counter', 'process_cpu_seconds_total', 'CPU time, of the user and of the system', () => {
    const { user, system } = process.cpuUsage()
    return (user + system) / MICROSECONDS
  })
  metrics.watch('gauge', 'process_start_time_seconds', 'When the process began, in seconds since 1970',
    () => performance.timeOrigin / 1000)
  metrics.watch('gauge', 'process_resident_memory_bytes', 'Memory that the process has',
    () => process.memoryUsage.rss())
  metrics.watch('gauge', 'nodejs_memory_bytes', 'Memory of V8 and of buffers', () => {
    const { rss, ...parts } = process.memoryUsage()
    return Object.entries(parts).map(([of, bytes]) => [{ of }, bytes] as const)
  })
  return () => delay.disable()
}
