# SPDX-License-Identifier: MIT
# Talks to Debian's Chromium through chromedriver (WebDriver over HTTP), with what perl brings along.
package driver;
use strict;
use warnings;
use HTTP::Tiny;
use JSON::PP;

# Gives the process, its output and its port; no port if it ended.
sub start_chromedriver
{
    my $pid = open my $out, '-|', 'chromedriver', '--port=0' or die "chromedriver: $!\n";
    while (defined(my $line = <$out>)) {
        return ($pid, $out, $1) if $line =~ /started successfully on port (\d+)/;
    }
    close $out;
    return ();
}

# Starts chromedriver on a free port, and a browser without a window. chromedriver takes a port that is free for IPv4,
# and ends if another program has it for IPv6.
sub start
{
    my ($class) = @_;
    my ($pid, $out, $port);
    for (1 .. 5) {
        ($pid, $out, $port) = start_chromedriver();
        last if defined $port;
    }
    die "chromedriver did not start\n" if !defined $port;
    my $self = bless {pid => $pid, out => $out, http => HTTP::Tiny->new(timeout => 120), base => "http://127.0.0.1:$port"}, $class;
    my @arguments = ('--headless=new', '--no-sandbox', '--disable-gpu', '--hide-scrollbars', '--disable-dev-shm-usage',
        '--window-size=1280,1000');
    my $session = $self->call(POST => '/session', {capabilities => {alwaysMatch => {browserName => 'chrome',
        'goog:chromeOptions' => {binary => $ENV{SHOAL_CHROMIUM} // '/usr/bin/chromium', args => \@arguments},
        'goog:loggingPrefs' => {browser => 'ALL', performance => 'ALL'}}}});
    $self->{session} = "/session/$session->{sessionId}";
    return $self;
}

sub call
{
    my ($self, $method, $path, $content) = @_;
    my %options = $method eq 'POST' ? (content => encode_json($content // {}), headers => {'content-type' => 'application/json'}) : ();
    my $answer = $self->{http}->request($method, $self->{base} . $path, \%options);
    my $value = eval { decode_json($answer->{content})->{value} };
    die "$method $path: $answer->{status} $answer->{content}\n" if !$answer->{success};
    return $value;
}

sub open_page { my ($self, $path) = @_; $self->call(POST => "$self->{session}/url", {url => "file://$path"}); }

# What a function of JavaScript returns: run('return 1 + arguments[0]', 2).
sub run
{
    my ($self, $script, @arguments) = @_;
    return $self->call(POST => "$self->{session}/execute/sync", {script => $script, args => \@arguments});
}

# A command of the DevTools protocol.
sub devtools
{
    my ($self, $command, $parameters) = @_;
    return $self->call(POST => "$self->{session}/goog/cdp/execute", {cmd => $command, params => $parameters});
}

# Moves the mouse through points of the window, with the button down from the first to the last if there are several.
sub mouse
{
    my ($self, @points) = @_;
    my @steps = map { {type => 'pointerMove', duration => 20, x => int($_->[0] + 0.5), y => int($_->[1] + 0.5)} } @points;
    @steps = ($steps[0], {type => 'pointerDown', button => 0}, @steps[1 .. $#steps], {type => 'pointerUp', button => 0}) if @steps > 1;
    $self->call(POST => "$self->{session}/actions", {actions => [{type => 'pointer', id => 'mouse', actions => \@steps}]});
}

# Messages of the console since the last call.
sub console { my ($self) = @_; return @{$self->call(POST => "$self->{session}/se/log", {type => 'browser'})}; }

# Addresses that pages asked for since the last call.
sub requests
{
    my ($self) = @_;
    my @events = map { decode_json($_->{message})->{message} } @{$self->call(POST => "$self->{session}/se/log", {type => 'performance'})};
    return map { $_->{params}{request}{url} } grep { $_->{method} eq 'Network.requestWillBeSent' } @events;
}

sub stop
{
    my ($self) = @_;
    eval { $self->call(DELETE => $self->{session}) } if $self->{session};
    kill 'TERM', $self->{pid};
    close $self->{out};
}

1;
