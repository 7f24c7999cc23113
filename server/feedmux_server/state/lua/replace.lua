-- ARGV: what was read, what to put there instead. A value of its own, not a subscription; only where nobody was faster.
if redis.call('GET', key) ~= ARGV[1] then return {'CHANGED'} end
redis.call('SET', key, ARGV[2])
return {'OK'}
