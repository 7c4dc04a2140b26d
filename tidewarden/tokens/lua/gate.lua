-- gate: what holds a provider's client back on all nodes together: refusals of the client, a provider that is down, or asks for less.
-- Kept in the first shard of its queue, in a hash `account_gate`: until (ms; nothing is sent before it), failures (in a row), probe
-- (ms; somebody probes until then), reason, since (ms; of the first of these failures); rate (thousandths of a request a second that the
-- provider seems to bear, 0: any number), ceiling (what it was when it last proved too much), grown, shrunk (ms), spent (us; up to when
-- the rate is used up). The rate halves when the provider says so, once a second at most, and grows back: to the ceiling within
-- half a minute, and to twice that, where it is forgotten, within another minute.
-- All these times are of the leases' clock, so that a provider waits no longer when the store's is stepped; in the reply they are unix.
-- KEYS    1 the shard  2 the view
-- ARGV    3 ask: 4 requests wanted, 5 the most of them a second, in thousandths (0: any), 6 how long a probe may take, ms
--           back: 4 requests that were granted and not sent, 5 as above
--           trip: 4 the reason    slow: 4 ms to wait, 5 what went a second just now, in thousandths    recover
-- RETURNS {granted, ms to wait, it is a probe 0|1, failures, until ms, since ms, rate, reason, something changed for all 0|1, now ms}
open()
redis.call('HDEL', INTENTS, '') -- a removal first: a full store lets the script go on
local RATE_MIN, STEP_MIN, FREE_MIN, SHRINK_MS, BURST_US, OPEN_MS, OPEN_MS_MAX = 100, 200, 5000, 1000, 1000000, 2000, 60000
local name, clock = key('account_gate'), lease_clock()
local g, writes = {until_ms = 0, failures = 0, probe = 0, since = 0, rate = 0, ceiling = 0, grown = 0, shrunk = 0, spent = 0}, {}
local flat, reason = redis.call('HGETALL', name), ''
for i = 1, #flat, 2 do
  if flat[i] == 'reason' then reason = flat[i + 1] else g[flat[i]] = tonumber(flat[i + 1]) end
end
local function put(field, value)
  g[field] = value
  writes[#writes + 1], writes[#writes + 2] = field, type(value) == 'number' and text(value) or value
end
local granted, wait, probe, news = 0, 0, 0, 0

local function grow()
  if g.rate == 0 or clock <= g.grown then return end
  local rate = g.rate + math.max(STEP_MIN, g.ceiling / 60) * (clock - g.grown) / 1000
  put('grown', clock)
  put('rate', rate >= math.max(2 * g.ceiling, FREE_MIN) and 0 or math.floor(rate))
end

local function rate_of(most) return g.rate > 0 and most > 0 and math.min(g.rate, most) or math.max(g.rate, most) end

local function grant(wanted, most)
  local rate = rate_of(most)
  if rate == 0 then granted = wanted return end
  local each, clock_us = 1000000000 / rate, clock * 1000
  local spent = math.min(clock_us, math.max(g.spent, clock_us - math.max(BURST_US, each))) -- later than now: a step back not yet seen
  granted = math.max(0, math.min(wanted, math.floor((clock_us - spent) / each)))
  put('spent', math.floor(spent + granted * each))
  if granted == 0 then wait = math.ceil((spent + each - clock_us) / 1000) end
end

local verb = ARGV[3]
if verb == 'ask' then
  local wanted, most, probe_ms = int(4, 'requests', 0, 100000), int(5, 'rate', 0, NEVER), int(6, 'probe ms', 1, NEVER)
  if g.until_ms > clock then wait = g.until_ms - clock
  elseif g.failures > 0 and g.probe > clock then wait = g.probe - clock
  elseif g.failures > 0 and wanted > 0 then
    put('probe', clock + probe_ms)
    granted, probe = 1, 1
  else
    grow()
    grant(wanted, most)
  end
elseif verb == 'back' then
  local rate = rate_of(int(5, 'rate', 0, NEVER))
  if rate > 0 then put('spent', math.max(0, g.spent - int(4, 'requests', 0, 100000) * 1000000000 / rate)) end
elseif verb == 'trip' then
  if g.failures == 0 or g.until_ms <= clock then -- else one of those that were under way when it closed: nothing new
    if g.failures == 0 then
      put('since', clock)
      news = 1
    end
    put('failures', math.min(g.failures + 1, 1000))
    put('until_ms', math.max(g.until_ms, clock + math.min(OPEN_MS_MAX, OPEN_MS * 2 ^ math.min(g.failures - 1, 10))))
    put('probe', 0)
  end
  reason = string.sub(ARGV[4] or '', 1, 300)
  put('reason', reason)
  if news == 1 then post_event('provider.breaker_open', '', reason) end
elseif verb == 'slow' then
  local wait_ms, measured = int(4, 'ms', 0, NEVER), int(5, 'rate', 0, NEVER)
  if clock + wait_ms > g.until_ms then put('until_ms', clock + wait_ms) end
  if clock - g.shrunk >= SHRINK_MS then
    grow()
    put('ceiling', math.max(RATE_MIN, g.rate > 0 and g.rate or measured))
    put('rate', math.max(RATE_MIN, math.floor(g.ceiling / 2)))
    put('grown', clock)
    put('shrunk', clock)
    news = 1
  end
elseif verb == 'recover' then
  if g.failures > 0 then
    put('failures', 0)
    put('probe', 0)
    put('until_ms', 0)
    put('since', 0)
    put('reason', '')
    reason, news = '', 1
    post_event('provider.breaker_closed', '', '')
  end
else refuse('BADARG what is asked of a gate: ' .. tostring(verb)) end
if #writes > 0 then redis.call('HSET', name, unpack(writes)) end
local function unix(ms) return ms > 0 and ms + S.lag or 0 end
return finish({granted, wait, probe, g.failures, unix(g.until_ms), unix(g.since), g.rate, reason, news, now})
