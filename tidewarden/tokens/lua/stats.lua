-- stats: counts the accounts of a shard by state, at a cost that does not grow with their number;
-- changes nothing.
-- DURABILITY none
-- GROWS   no
-- READS
-- EACH    of several shards of one server in one call
-- KEYS    1 the shard  2 the view
-- RETURNS {accounts, fresh, late, failing, stopped, dead, lost, open intents, spares, next try of
--         one that fails, ms | 0, accounts whose refresh tokens end within a day, 7 days, 30 days
--         whatever is done, the client's record as client.lua keeps it (empty but in the first
--         shard), ms of the leases' clock, how far unix time is ahead of it}; the rest of the
--         accounts are expiring. A failing account whose retry is due counts as failing alone, and
--         while its token lives a late one counts as expiring for it; likewise one that is under
--         way just now.
open()
local total, failing, dead, lost =
  redis.call('HLEN', ACCOUNTS),
  redis.call('ZCARD', FAILING),
  redis.call('ZCARD', DEAD),
  redis.call('SCARD', key('account_lost'))
local stopped = redis.call('SCARD', key('account_stopped'))
local failing_due = redis.call('ZCOUNT', FAILING, '-inf', text(now))
-- Delayed, too, and not fresh.
local held = redis.call('ZCOUNT', key('account_held'), '(' .. text(now), '+inf')
local fresh = delayed_count() - (failing - failing_due) - held
local late = 0
for priority in string.gmatch(S.pris, '%S+') do
  late = late + redis.call('ZCOUNT', key('ready:' .. priority), '1', text(now))
end
late = math.max(0, late - failing_due)
fresh = math.max(0, fresh)
local function ending(days)
  return redis.call('ZCOUNT', key('account_consents'), text(now), text(now + days * 86400000))
end
return finish({
  total,
  fresh,
  math.min(late, math.max(0, total - fresh - failing - dead)),
  failing,
  stopped,
  dead - lost - stopped,
  lost,
  redis.call('HLEN', INTENTS),
  redis.call('HLEN', SPARES),
  tonumber(redis.call('ZRANGE', FAILING, 0, 0, 'WITHSCORES')[2] or 0),
  ending(1),
  ending(7),
  ending(30),
  redis.call('HGET', key('account_client'), 'record') or '',
  lease_clock(),
  S.lag,
})
